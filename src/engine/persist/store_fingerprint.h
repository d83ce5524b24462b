// Names everything that decides the bytes of a model's states: files and machines whose states may be
// exchanged have the same fingerprint, and no others.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "kvcache/store.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// Returns the hash of all of a file, which is read: metadata and weights. Errors: kOutOfMemory.
Result<StoreHash> FileHash(const GgufFile& file);

// Returns the hash of all of the model's file: metadata, tokenizer and weights. Reads the whole file; the
// result is kept in `store` for as long as the file does not change. Errors: kOutOfMemory.
Result<StoreHash> ModelHash(const Engine& engine, Store& store);

// Returns the fingerprint as text, a line for each part. `model` is the model's hash. Errors: those of
// CacheSnapshots::Fingerprint.
Result<std::string> FingerprintText(Engine& engine, const StoreHash& model);

}  // namespace kvcache
