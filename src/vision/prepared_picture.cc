#include "vision/prepared_picture.h"

#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/decode.h"
#include "image/fit.h"

namespace kvcache::vision {

Result<PictureLayout> LayoutOf(image::PictureSize picture, const VisionSettings& settings) {
  PictureLayout layout;
  KVCACHE_ASSIGN_OR_RETURN(layout.size, image::SizeFor(picture, settings.size_rule));
  const int token = settings.patch_size * settings.merge;
  if (layout.size.width % token != 0 || layout.size.height % token != 0) {
    return InvalidArgument(StrCat("a size of ", layout.size.width, " x ", layout.size.height,
                                  " pixels; both sides must be multiples of ", token));
  }
  layout.tokens = {layout.size.width / token, layout.size.height / token};
  layout.patches = {layout.tokens.columns * settings.merge, layout.tokens.rows * settings.merge};
  const std::int64_t patches = std::int64_t{layout.patches.columns} * layout.patches.rows;
  if (patches > kMaxPatches) {
    return InvalidArgument(
        StrCat("a picture of ", patches, " patches; must be at most ", kMaxPatches));
  }
  layout.token_count =
      layout.tokens.count() + (settings.has_row_breaks ? layout.tokens.rows - 1 : 0);
  return layout;
}

Result<PreparedPicture> Prepare(std::span<const std::byte> file, std::string_view name,
                                const VisionSettings& settings,
                                const image::PictureLimits& limits) {
  KVCACHE_ASSIGN_OR_RETURN(const image::Picture decoded, image::DecodePicture(file, name, limits));
  const auto in_context = [&](Status status) {
    return std::move(status).WithContext(std::string(name));
  };
  PreparedPicture prepared;
  auto layout = LayoutOf({decoded.width, decoded.height}, settings);
  if (!layout.ok()) return in_context(std::move(layout).TakeStatus());
  prepared.layout = *layout;
  auto pixels = image::Fit(decoded, layout->size, image::Stretch{settings.filter});
  if (!pixels.ok()) return in_context(std::move(pixels).TakeStatus());
  prepared.pixels = std::move(pixels).value();
  return prepared;
}

}  // namespace kvcache::vision
