#include "cli/option_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <ranges>
#include <string_view>
#include <utility>

#include "server/api/base/tool_fields.h"

namespace coppice::cli {

CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) { return text.starts_with('-') ? text + " is negative" : std::string(); }, "");
}

CLI::Validator size() {
  return CLI::Validator(
      [](std::string& text) {
        constexpr std::string_view kUnits = "kmgtpe";
        constexpr double kMost = 9e18;  // fits 64 bits with a sign
        const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
        std::string unit = CLI::detail::to_lower(CLI::detail::trim_copy(text.substr(digits)));
        double bytes = 0;
        bool fits = digits > 0 && CLI::detail::lexical_cast(text.substr(0, digits), bytes);
        if (unit.ends_with('b')) unit.pop_back();
        const double step = unit.size() == 2 && unit[1] == 'i' ? 1024 : 1000;
        if (!unit.empty()) {
          const std::size_t power = kUnits.find(unit[0]);
          fits = fits && power != kUnits.npos && (unit.size() == 1 || step == 1024);
          if (fits) bytes *= std::pow(step, static_cast<double>(power + 1));
        }
        if (!fits || bytes > kMost) return text + " is no size, as 512MiB, 1.5GB or a number of bytes are";
        text = fmt::format("{}", static_cast<std::uint64_t>(bytes));
        return std::string();
      },
      "SIZE");
}

CLI::Validator read_as(std::map<std::string, std::string> same) {
  return CLI::Validator(
      [same = std::move(same)](std::string& text) {
        if (const auto found = same.find(text); found != same.end()) text = found->second;
        return std::string();
      },
      "");
}

CLI::Validator on_and_off(const std::string& on, const std::string& off) {
  return read_as({{"on", on},
                  {"enabled", on},
                  {"true", on},
                  {"1", on},
                  {"off", off},
                  {"disabled", off},
                  {"false", off},
                  {"0", off},
                  {"-1", "auto"}});
}

CLI::Validator why_not(std::map<std::string, std::string> refused) {
  return CLI::Validator(
      [refused = std::move(refused)](const std::string& text) {
        const auto found = refused.find(text);
        return found == refused.end() ? std::string() : fmt::format("{} is no choice here; {}", text, found->second);
      },
      "");
}

CLI::Validator only(std::string value, std::string why) {
  std::string choice = fmt::format("{{{}}}", value);
  return CLI::Validator(
      [value = std::move(value), why = std::move(why)](const std::string& text) {
        return text == value ? std::string() : fmt::format("{} is no choice here; {}", text, why);
      },
      std::move(choice));
}

CLI::Validator template_file() {
  return CLI::Validator(
      [](const std::string& text) {
        if (CLI::ExistingFile(text).empty()) return std::string();
        return fmt::format(
            "there is no file {}; --chat-template-file names a file with a Jinja template, and without it the model's "
            "own is used",
            text);
      },
      "FILE");
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

CLI::Validator template_variables() {
  return CLI::Validator(
      [](const std::string& text) {
        boost::system::error_code error;
        const auto value = boost::json::parse(text, error);
        if (error || !value.is_object()) return text + " is no JSON object";
        for (const auto& field : value.get_object())
          if (server::is_reserved_variable(field.key()))
            return std::string(field.key()) + " is not a variable that can be set";
        return std::string();
      },
      "");
}

CLI::Validator given() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "it is empty" : ""; }, "");
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
