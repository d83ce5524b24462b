#include "server/route.h"

namespace kvcache::server {

void ServerContext::Refuse(const Status& status, const char* param) const {
  ApiError error = FromStatus(status);
  error.param = param;
  Refuse(error);
}

void ServerContext::RefuseModel(const Status& status) const {
  ApiError error = FromStatus(status);
  error.param = "model";
  if (error.status == 404) error.code = "model_not_found";
  Refuse(error);
}

}  // namespace kvcache::server
