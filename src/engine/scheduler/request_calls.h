// Calls of the functions and objects that a request brings. If one throws, its request ends with an error, and no
// other request is concerned.
//
// Thread safety: the engine's thread.
#pragma once

#include <exception>
#include <new>

#include "base/strings.h"
#include "engine/scheduler/job.h"

namespace kvcache {

// Calls `call`. Returns whether it returned; if it threw, the request's result has the stop reason and the status.
template <class Call>
bool CallOfRequest(Job& job, const Call& call) {
  const auto refuse = [&](StatusCode code, std::string message) {
    job.result.stop = StopReason::kInterrupted;
    job.result.status = {code, std::move(message)};
    return false;
  };
  try {
    call();
    return true;
  } catch (const std::bad_alloc&) {
    return refuse(StatusCode::kOutOfMemory, "no memory for the request");
  } catch (const std::exception& error) {
    return refuse(StatusCode::kInternal, StrCat("a function of the request threw: ", error.what()));
  } catch (...) {
    return refuse(StatusCode::kInternal, "a function of the request threw");
  }
}

}  // namespace kvcache
