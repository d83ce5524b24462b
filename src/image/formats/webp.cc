// WebP through libwebp: alpha is dropped. Of an animation, the first frame, on a black canvas.
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/formats/formats.h"

namespace kvcache::image {
namespace {

Status WebpError(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OK: return Status::Ok();
    case VP8_STATUS_OUT_OF_MEMORY: return OutOfMemory("no memory to decode it");
    case VP8_STATUS_UNSUPPORTED_FEATURE: return Unsupported("it uses a feature that libwebp lacks");
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA: return Corrupt("the file ends before the picture does");
    default: return Corrupt("its stream is damaged");
  }
}

Result<WebPBitstreamFeatures> WebpFeatures(const std::uint8_t* data, std::size_t size) {
  WebPBitstreamFeatures features = {};
  KVCACHE_RETURN_IF_ERROR(WebpError(WebPGetFeatures(data, size, &features)));
  return features;
}

// REQUIRES: the picture has the size of the stream.
Status DecodeStill(const std::uint8_t* data, std::size_t size, Picture& picture) {
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) {
    return Status(StatusCode::kInternal, "libwebp has another version than its headers");
  }
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = picture.rgb.data();
  config.output.u.RGBA.stride = static_cast<int>(picture.row_bytes());
  config.output.u.RGBA.size = picture.rgb.size();
  return WebpError(WebPDecode(data, size, &config));
}

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

// REQUIRES: the canvas has the size that the file's header names.
Status DecodeFirstFrame(const std::uint8_t* data, std::size_t size, const PictureLimits& limits,
                        Picture& canvas) {
  const WebPData file{data, size};
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&file));
  if (demuxer == nullptr) return Corrupt("its list of frames is damaged");
  WebPIterator frame = {};
  if (WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0) return Corrupt("it has no frame");
  const WebPIterator first = frame;  // its bytes are the file's
  WebPDemuxReleaseIterator(&frame);
  if (first.x_offset < 0 || first.y_offset < 0 || first.width > canvas.width - first.x_offset ||
      first.height > canvas.height - first.y_offset) {
    return Corrupt("its first frame exceeds its canvas");
  }
  KVCACHE_ASSIGN_OR_RETURN(const auto features,
                           WebpFeatures(first.fragment.bytes, first.fragment.size));
  if (features.width != first.width || features.height != first.height) {
    return Corrupt("its first frame has two sizes");
  }
  KVCACHE_ASSIGN_OR_RETURN(Picture picture, NewPicture(first.width, first.height, limits));
  KVCACHE_RETURN_IF_ERROR(DecodeStill(first.fragment.bytes, first.fragment.size, picture));
  for (int y = 0; y < picture.height; ++y) {
    std::ranges::copy(
        std::as_const(picture).Row(y),
        canvas.Row(first.y_offset + y).subspan(std::size_t(first.x_offset) * 3).begin());
  }
  return Status::Ok();
}

}  // namespace

Result<Picture> DecodeWebp(std::span<const std::byte> file, const PictureLimits& limits) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(file.data());
  KVCACHE_ASSIGN_OR_RETURN(const auto features, WebpFeatures(data, file.size()));
  KVCACHE_ASSIGN_OR_RETURN(Picture picture, NewPicture(features.width, features.height, limits));
  KVCACHE_RETURN_IF_ERROR(features.has_animation != 0
                              ? DecodeFirstFrame(data, file.size(), limits, picture)
                              : DecodeStill(data, file.size(), picture));
  return picture;
}

}  // namespace kvcache::image
