// PNG through libpng: 8 bits a channel, palettes applied, alpha dropped, no gamma and no profiles.
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>

#include "base/errors.h"
#include "base/strings.h"
#include "image/formats/formats.h"
#include "image/formats/palette.h"

namespace kvcache::image {
namespace {

// libpng reports an error by a call that must not return: it jumps to the call below that set `jump`. No frame
// between the two has anything to destroy.
struct PngState {
  const std::byte* next = nullptr;
  std::size_t left = 0;
  std::jmp_buf jump = {};
  char message[160] = {};
};

[[noreturn]] void OnPngError(png_structp png, png_const_charp message) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::strncpy(state->message, message, sizeof(state->message) - 1);
  std::longjmp(state->jump, 1);
}

void OnPngWarning(png_structp, png_const_charp) {}

void ReadPngBytes(png_structp png, png_bytep out, std::size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state->left) png_error(png, "the file ends before the picture does");
  std::memcpy(out, state->next, count);
  state->next += count;
  state->left -= count;
}

class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> file) {
    state_.next = file.data();
    state_.left = file.size();
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state_, OnPngError, OnPngWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // Each returns false after an error, which message() has.
  bool ReadHeader() {
    if (info_ == nullptr) {
      std::strcpy(state_.message, "libpng could not be set up");
      return false;
    }
    if (setjmp(state_.jump) != 0) return false;
    png_set_read_fn(png_, &state_, ReadPngBytes);
    // The limits here are those of the caller; profiles and texts, which may inflate, are skipped.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    return true;
  }

  bool is_indexed() const { return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE; }

  // Reads the rows: one byte, an index, for each pixel of an indexed picture, else three.
  bool ReadPixels(std::uint8_t* pixels) {
    if (setjmp(state_.jump) != 0) return false;
    if (is_indexed()) {
      png_set_packing(png_);
    } else {
      png_set_expand(png_);
      png_set_strip_16(png_);
      png_set_gray_to_rgb(png_);
      png_set_strip_alpha(png_);
    }
    const std::size_t row_bytes = std::size_t{width()} * (is_indexed() ? 1 : 3);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != row_bytes) png_error(png_, "its rows have another length");
    for (int pass = 0; pass < passes; ++pass) {
      for (std::size_t y = 0; y < height(); ++y) {
        png_read_row(png_, pixels + y * row_bytes, nullptr);
      }
    }
    png_read_end(png_, nullptr);
    return true;
  }

  Palette ReadPalette() const {
    png_colorp colours = nullptr;
    int count = 0;
    png_get_PLTE(png_, info_, &colours, &count);
    Palette palette;
    for (int i = 0; i < count; ++i) palette.Add(colours[i].red, colours[i].green, colours[i].blue);
    return palette;
  }

  png_uint_32 width() const { return png_get_image_width(png_, info_); }
  png_uint_32 height() const { return png_get_image_height(png_, info_); }
  const char* message() const { return state_.message; }

 private:
  PngState state_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

Result<Picture> DecodePng(std::span<const std::byte> file, const PictureLimits& limits) {
  PngReader reader(file);
  if (!reader.ReadHeader()) return Corrupt(reader.message());
  KVCACHE_ASSIGN_OR_RETURN(Picture picture, NewPicture(reader.width(), reader.height(), limits));
  if (!reader.is_indexed()) {
    if (!reader.ReadPixels(picture.rgb.data())) return Corrupt(reader.message());
    return picture;
  }
  KVCACHE_ASSIGN_OR_RETURN(std::vector<std::uint8_t> indices, NewIndices(picture));
  if (!reader.ReadPixels(indices.data())) return Corrupt(reader.message());
  KVCACHE_RETURN_IF_ERROR(reader.ReadPalette().Colour(indices, picture));
  return picture;
}

}  // namespace kvcache::image
