// XGrammar's private header of messages declares what gets them here, LogFatalImpl() and LogMessageImpl(); no public
// one does.
#include "grammar/xgrammar_log.h"

#include <support/logging.h>

#include "grammar/source.h"

namespace coppice::grammar {

namespace {

thread_local Warnings* listening = nullptr;

}  // namespace

Warnings::Warnings() {
  listening = this;
}

Warnings::~Warnings() {
  listening = nullptr;
}

void hear(int level, const std::string& message) {
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && listening != nullptr) listening->add(message);
}

}  // namespace coppice::grammar

namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw coppice::grammar::GrammarError(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  coppice::grammar::hear(level, message);
}

}  // namespace xgrammar
