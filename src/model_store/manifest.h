// A manifest lists the blobs of a model: JSON in the form of Docker's image manifests, schema
// version 2, with Ollama's media types.
//
// Thread safety: values and free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"

namespace kvcache {

namespace media_type {
inline constexpr std::string_view kManifest =
    "application/vnd.docker.distribution.manifest.v2+json";
inline constexpr std::string_view kConfig = "application/vnd.docker.container.image.v1+json";
inline constexpr std::string_view kModel = "application/vnd.ollama.image.model";
inline constexpr std::string_view kDraft = "application/vnd.ollama.image.draft";
inline constexpr std::string_view kProjector = "application/vnd.ollama.image.projector";
inline constexpr std::string_view kAdapter = "application/vnd.ollama.image.adapter";
inline constexpr std::string_view kTemplate = "application/vnd.ollama.image.template";
inline constexpr std::string_view kPrompt = "application/vnd.ollama.image.prompt";  // old: template
inline constexpr std::string_view kSystem = "application/vnd.ollama.image.system";
inline constexpr std::string_view kParameters = "application/vnd.ollama.image.params";
inline constexpr std::string_view kMessages = "application/vnd.ollama.image.messages";
inline constexpr std::string_view kLicense = "application/vnd.ollama.image.license";
}  // namespace media_type

struct ManifestLayer {
  std::string media_type;
  std::string digest;  // "sha256:" and 64 digits
  std::uint64_t size = 0;

  bool operator==(const ManifestLayer&) const = default;
};

struct Manifest {
  ManifestLayer config;
  std::vector<ManifestLayer> layers;

  // Returns the only layer of a type, or nullptr. Errors: kUnsupported: there are several.
  Result<const ManifestLayer*> Only(std::string_view type) const;

  bool operator==(const Manifest&) const = default;
};

inline constexpr std::size_t kMaxManifestBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxManifestLayers = 4096;
// Sizes are summed and compared with files; no file is larger.
inline constexpr std::uint64_t kMaxLayerBytes = std::uint64_t{1} << 60;

// Errors: kCorrupt: not a manifest, with the place; kUnsupported: another schema version. Fields
// that are not named above are skipped. Every digest of the result is well formed.
Result<Manifest> ParseManifest(std::string_view text);

std::string ManifestText(const Manifest& manifest);

}  // namespace kvcache
