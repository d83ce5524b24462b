// The functions that the compiler calls before each access to memory of a kernel (-fsanitize=thread).
#include <cstddef>
#include <cstdint>
#include <cstring>

#pragma GCC diagnostic ignored "-Wmissing-declarations"

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* /*caller*/) {}
void __tsan_func_exit() {}
void __tsan_read1(void* /*at*/) {}
void __tsan_read2(void* /*at*/) {}
void __tsan_read4(void* /*at*/) {}
void __tsan_read8(void* /*at*/) {}
void __tsan_read16(void* /*at*/) {}
void __tsan_write1(void* /*at*/) {}
void __tsan_write2(void* /*at*/) {}
void __tsan_write4(void* /*at*/) {}
void __tsan_write8(void* /*at*/) {}
void __tsan_write16(void* /*at*/) {}
void __tsan_read_range(void* /*at*/, std::size_t /*bytes*/) {}
void __tsan_write_range(void* /*at*/, std::size_t /*bytes*/) {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}

void* kvcache_shim_copy(void* to, const void* from, std::size_t bytes) noexcept {
  return std::memcpy(to, from, bytes);
}
void* kvcache_shim_fill(void* to, int value, std::size_t bytes) noexcept {
  return std::memset(to, value, bytes);
}

}  // extern "C"
