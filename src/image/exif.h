// Finds the Exif block of a picture's file, and the orientation in it. Files are foreign: what is damaged, or not
// where the format says, is left out, and the picture is shown as it is stored. Time is linear in the file's size.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <span>

#include "image/orientation.h"

namespace kvcache::image {

// Each returns the first Exif block, as TIFF, or nothing. REQUIRES: the file is of the format.
std::span<const std::byte> ExifOfPng(std::span<const std::byte> file);
std::span<const std::byte> ExifOfJpeg(std::span<const std::byte> file);
std::span<const std::byte> ExifOfWebp(std::span<const std::byte> file);

// Returns the orientation in the first directory of a TIFF block; kUpright if there is none.
Orientation OrientationOf(std::span<const std::byte> tiff);

}  // namespace kvcache::image
