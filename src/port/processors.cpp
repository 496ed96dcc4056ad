#include "port/processors.h"

#include <algorithm>
#include <cstdio>

namespace coppice::port {

namespace {

std::string counted(int n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

}  // namespace

int Processors::threads() const {
  const int allowed = quota ? std::max(1, static_cast<int>(std::min(*quota, 1e6))) : fast;
  return std::min(fast, allowed);
}

std::string Processors::reason() const {
  std::string text = counted(usable, "processor");
  if (cores < usable) text += ", " + counted(cores, "whole core");
  if (fast < cores) text += ", " + std::to_string(fast) + " of the faster kind";
  if (nodes > 1) text += ", " + counted(nodes, "memory node");
  if (quota) {
    char number[32];
    std::snprintf(number, sizeof number, "%.3g", *quota);
    text += ", a quota of ";
    text += number;
  }
  return text;
}

}  // namespace coppice::port
