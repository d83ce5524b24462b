// --mmproj and --image: the tower of a model, and pictures for it.
//
// Thread safety: values.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/flags/command_line.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {

class PictureFlags {
 public:
  // Declares both flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);
  // Declares --mmproj alone.
  void AddTower(FlagSet command);

  // Returns the file of --mmproj; empty: it is not given. "none": no tower, whatever the model has.
  const std::string& projector() const { return projector_; }
  static constexpr const char* kNone = "none";
  // Sets the projector of a stored model, for a command line without --mmproj.
  void SetDefault(std::string path) { stored_ = std::move(path); }

  // Gives the engine the tower of --mmproj, or of the stored model if there are pictures. Errors: those of
  // Engine::UseTower.
  Status Use(Engine& engine) const;
  // The same for a picture that comes later. Does nothing if the engine has a tower, or nobody named one.
  Status UseLater(Engine& engine) const;
  // Reads the pictures of --image. Errors: those of ReadPicture.
  Result<std::vector<PicturePtr>> Read(const Engine& engine) const;

 private:
  std::string projector_;
  std::string stored_;
  std::vector<std::string> images_;
};

// Reads a picture's file; "-" is standard input. Errors: those of the file, and of Engine::PreparePicture, with the file's
// name.
Result<PicturePtr> ReadPicture(const Engine& engine, const std::string& path);

}  // namespace kvcache::app
