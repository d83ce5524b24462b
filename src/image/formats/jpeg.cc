// JPEG through libjpeg-turbo, with its exact integer transform and smooth upsampling (the bits that Pillow gets).
#include <cstdio>  // before jpeglib.h, which uses FILE
// The library's headers in their order.
#include <jpeglib.h>

#include <jerror.h>

#include <csetjmp>
#include <cstring>
#include <string>

#include "base/errors.h"
#include "base/strings.h"
#include "image/formats/formats.h"

namespace kvcache::image {
namespace {

// libjpeg reports an error by a call that must not return: it jumps to the call below that set `jump`. No frame
// between the two has anything to destroy.
struct JpegState {
  jpeg_error_mgr errors = {};  // first: the library points to it
  jpeg_progress_mgr progress = {};
  std::jmp_buf jump = {};
  StatusCode code = StatusCode::kCorrupt;
  char message[JMSG_LENGTH_MAX] = {};
  int max_scans = 0;
};

JpegState* StateOf(j_common_ptr jpeg) {
  return static_cast<JpegState*>(jpeg->client_data);
}

[[noreturn]] void OnJpegError(j_common_ptr jpeg) {
  JpegState* state = StateOf(jpeg);
  if (jpeg->err->msg_code == JERR_OUT_OF_MEMORY) state->code = StatusCode::kOutOfMemory;
  if (jpeg->err->msg_code == JERR_IMAGE_TOO_BIG) state->code = StatusCode::kInvalidArgument;
  jpeg->err->format_message(jpeg, state->message);
  std::longjmp(state->jump, 1);
}

// Warnings that pixels are guessed are errors. Others, such as bytes between markers, are not.
void OnJpegMessage(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC: OnJpegError(jpeg);
    default: break;
  }
}

void OnJpegProgress(j_common_ptr jpeg) {
  JpegState* state = StateOf(jpeg);
  const int scans = reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number;
  if (scans <= state->max_scans) return;
  state->code = StatusCode::kInvalidArgument;
  std::snprintf(state->message, sizeof(state->message), "it has more than %d scans",
                state->max_scans);
  std::longjmp(state->jump, 1);
}

// Pillow's order and rounding. Adobe stores CMYK inverted, and all files with four channels are taken so.
void RgbOfInvertedCmyk(const std::uint8_t* cmyk, JDIMENSION width, std::uint8_t* rgb) {
  for (JDIMENSION x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - cmyk[c]) * white + 128;
      rgb[c] = static_cast<std::uint8_t>(white - (((product >> 8) + product) >> 8));
    }
  }
}

class JpegReader {
 public:
  JpegReader(std::span<const std::byte> file, int max_scans) : file_(file) {
    state_.max_scans = max_scans;
    jpeg_.client_data = &state_;
    jpeg_.err = jpeg_std_error(&state_.errors);
    state_.errors.error_exit = OnJpegError;
    state_.errors.emit_message = OnJpegMessage;
    state_.progress.progress_monitor = OnJpegProgress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Each returns false after an error, which error() has.
  bool ReadHeader() {
    if (setjmp(state_.jump) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.progress = &state_.progress;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  bool is_cmyk() const {
    return jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
  }
  bool is_known() const {
    return is_cmyk() || jpeg_.num_components == 1 || jpeg_.num_components == 3;
  }

  // Of the file's header.
  JDIMENSION width() const { return jpeg_.image_width; }
  JDIMENSION height() const { return jpeg_.image_height; }
  int components() const { return jpeg_.num_components; }

  // `rgb` has three bytes for each pixel, `cmyk` four for each of a row of a picture with four channels.
  bool ReadPixels(std::uint8_t* rgb, std::uint8_t* cmyk) {
    if (setjmp(state_.jump) != 0) return false;
    jpeg_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    jpeg_.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      std::uint8_t* out = rgb + std::size_t{jpeg_.output_scanline} * width() * 3;
      JSAMPROW row = is_cmyk() ? cmyk : out;
      jpeg_read_scanlines(&jpeg_, &row, 1);
      if (is_cmyk()) RgbOfInvertedCmyk(cmyk, width(), out);
    }
    return true;
  }

  Status error() const { return {state_.code, state_.message}; }

 private:
  std::span<const std::byte> file_;
  JpegState state_;
  jpeg_decompress_struct jpeg_ = {};
};

}  // namespace

Result<Picture> DecodeJpeg(std::span<const std::byte> file, const PictureLimits& limits) {
  JpegReader reader(file, limits.max_scans);
  if (!reader.ReadHeader()) return reader.error();
  if (!reader.is_known()) {
    return Unsupported(StrCat("it has ", reader.components(), " channels; 1, 3 or 4 are decoded"));
  }
  KVCACHE_ASSIGN_OR_RETURN(Picture picture, NewPicture(reader.width(), reader.height(), limits));
  std::vector<std::uint8_t> cmyk;
  if (reader.is_cmyk()) {
    KVCACHE_RETURN_IF_ERROR(
        Guarded("no memory for a row", [&] { cmyk.resize(reader.width() * std::size_t{4}); }));
  }
  if (!reader.ReadPixels(picture.rgb.data(), cmyk.data())) return reader.error();
  return picture;
}

}  // namespace kvcache::image
