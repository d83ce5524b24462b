// The flags of `kvcache serve`. A program without the server has them too.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <vector>

#include "app/flags/adapter_flags.h"
#include "app/flags/command_line.h"
#include "app/flags/engine_flags.h"
#include "app/flags/fetch_flags.h"
#include "app/flags/picture_flags.h"
#include "app/flags/store_flags.h"
#include "kvcache_engine/scheduler.h"

namespace kvcache::app {

struct ServeFlags {
  std::vector<std::string> models;
  EngineFlags engine;
  StoreFlags store;
  FetchFlags fetch;
  AdapterFlags adapters;  // of the first model
  PictureFlags pictures;  // the first model's tower
  std::string dialect;
  std::string draft;  // empty: the DRAFT of a stored model
  int max_models = 8;
  int keep_alive = -1;
  int sequences = 16;
  int step_ms = SchedulerOptions{}.step_ms;
  int stop_seconds = 5;
  std::string host = "127.0.0.1";
  int port = 11500;
  std::string api_keys;
  std::string tls_certificate, tls_key;
  std::vector<std::string> origins;
  std::string volatile_lines;
  bool ignore_images = false;
  std::string log = "info";
  std::string log_form = "text";

  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);
};

}  // namespace kvcache::app
