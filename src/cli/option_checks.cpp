#include "cli/option_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <string_view>
#include <utility>

namespace coppice::cli {

CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) { return text.starts_with('-') ? text + " is negative" : std::string(); }, "");
}

CLI::Validator minus_one_as(std::string value) {
  return CLI::Validator(
      [value = std::move(value)](std::string& text) {
        if (text == "-1") text = value;
        return std::string();
      },
      "");
}

CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0.0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= least && value <= most ? std::string()
                                                         : fmt::format("{} not in range [{} - {}]", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

CLI::Validator whole_from(int least, std::vector<int> others) {
  return CLI::Validator(
      [least, others = std::move(others)](const std::string& text) {
        int value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        const bool fits = number && (value >= least || std::ranges::find(others, value) != others.end());
        return fits ? std::string() : fmt::format("{} is not {}, or at least {}", text, fmt::join(others, ", "), least);
      },
      "");
}

CLI::Validator seconds_from(double least) {
  return between(least, 1e6).description("SECONDS");
}

CLI::Validator origins() {
  return CLI::Validator(
      [](const std::string& text) {
        for (const auto part : std::views::split(std::string_view(text), ',')) {
          const std::string origin = CLI::detail::trim_copy(std::string(part.begin(), part.end()));
          const bool known = origin.empty() || origin == "*" || origin == "localhost" || origin == "null";
          if (!known && !origin.contains("://"))
            return fmt::format("{} has no scheme: an origin is like https://app.example.com", origin);
        }
        return std::string();
      },
      "");
}

}  // namespace coppice::cli
