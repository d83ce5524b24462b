#include "app/chat/conversation_file.h"

#include <span>

#include "app/terminal/terminal.h"
#include "platform/output/output_file.h"

namespace kvcache::app {

Status SaveConversation(const std::string& path, const Conversation& conversation) {
  const std::string text = conversation.ToJson();
  KVCACHE_ASSIGN_OR_RETURN(OutputFile out, OutputFile::Create(path, text.size()));
  KVCACHE_RETURN_IF_ERROR(out.Write(std::as_bytes(std::span(text))));
  return out.Commit();
}

Status LoadConversation(const std::string& path, Conversation& conversation) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
  return conversation.ReadJson(text).WithContext(path);
}

}  // namespace kvcache::app
