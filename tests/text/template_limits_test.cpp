// What a hostile template may take: it ends with an error, at load or at a request, in bounded time, memory and stack.
#include "text/template_limits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/sanitized.h"
#include "text/fixtures.h"
#include "text/tool_chat.h"

namespace coppice::text {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string times(std::size_t n, const std::string& text) {
  std::string all;
  for (std::size_t i = 0; i < n; ++i) all += text;
  return all;
}

/// What loading it says; empty: it loads.
std::string refusal(const std::string& source) {
  try {
    const ChatTemplate chat(test::vocabulary(), source);
    return {};
  } catch (const TemplateError& e) {
    return e.what();
  }
}

/// All of these once were endless, took all memory or ended the process.
struct Hostile {
  const char* name;
  std::string source;

  friend void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }
};

std::vector<Hostile> too_large() {
  return {
      {"blanks", times(300'000, " ")},
      {"parentheses", "{{ " + times(200'000, "(") + "1" + times(200'000, ")") + " }}"},
      {"few parentheses", "{{ " + times(10'000, "(") + "1" + times(10'000, ")") + " }}"},
      {"lists", "{{ " + times(10'000, "[") + times(10'000, "]") + " }}"},
      {"objects", "{{ " + times(10'000, "{1:") + "1" + times(10'000, "}") + " }}"},
      {"members", "{{ a" + times(10'000, "[a") + times(10'000, "]") + " }}"},
      {"ifs", times(100'000, "{% if 1 %}") + times(100'000, "{% endif %}")},
      {"few ifs", times(5'000, "{% if 1 %}") + times(5'000, "{% endif %}")},
      {"ifs with what ends nothing", times(5'000, "{% if 1 %}{% endgeneration %}")},
      {"branches", "{% if 1 %}" + times(5'000, "{% elif 1 %}") + "{% endif %}"},
      {"loops", times(5'000, "{% for a in b %}") + times(5'000, "{% endfor %}")},
      {"sets", times(5'000, "{% set a %}") + times(5'000, "{% endset %}")},
      {"sets that look like others", times(5'000, "{% set a(b=1) %}") + times(5'000, "{% endset %}")},
      {"macros", times(5'000, "{% macro a() %}") + times(5'000, "{% endmacro %}")},
      {"calls", times(5'000, "{% call a() %}") + times(5'000, "{% endcall %}")},
      {"filters", times(5'000, "{% filter upper %}") + times(5'000, "{% endfilter %}")},
      {"a sum", "{{ 1" + times(100'000, "+1") + " }}"},
      {"sums inside sums", "{{ " + times(60, "(") + "1" + times(60, times(1'500, "+1") + ")") + " }}"},
      {"filters of filters", "{{ a" + times(100'000, "|a") + " }}"},
      {"dots", "{{ a" + times(100'000, ".a") + " }}"},
      {"nots", "{{ " + times(50'000, "not ") + "1 }}"},
      {"minuses", "{{ " + times(100'000, "-") + "a }}"},
      {"choices", "{{ 1" + times(10'000, " if 1 else 1") + " }}"},
      {"tests", "{{ 1" + times(10'000, " is even") + " }}"},
      {"calls of calls", "{{ a" + times(100'000, "()") + " }}"},
  };
}

std::vector<Hostile> endless() {
  const std::string twice = "{% set ns = namespace(x='a', l=1) %}{% for i in range(64) %}";
  return {
      {"range", "{% for i in range(1000000000) %}{% endfor %}"},
      {"range of great steps",
       "{% for i in range(0, 9223372036854775807, 4611686018427387905) %}{{ i }}{% endfor %}"
       "{% for i in range(1000000000) %}{% endfor %}"},
      {"loops",
       "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}{% endfor %}{% endfor %}{% "
       "endfor %}"},
      {"repeated text", "{{ 'a' * 10000000000 }}"},
      {"repeated often", "{% for i in range(1000) %}{{ 'abcdefgh' * 1000000 }}{% endfor %}"},
      {"doubled text", twice + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}"},
      {"doubled by ~", twice + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}"},
      {"doubled by format", twice + "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}{% endfor %}"},
      {"doubled by replace", twice + "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}"},
      {"replaced between all", twice + "{% set ns.x = ns.x | replace('', 'aa') %}{% endfor %}"},
      {"doubled by join", twice + "{% set ns.x = [ns.x, ns.x] | join('b') %}{% endfor %}"},
      {"doubled by set", twice + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}"},
      {"kept copies",
       "{% set x = 'a' * 100000 %}{% set l = [] %}{% for i in range(100000) %}{% set y = l.append(x | upper) %}{% "
       "endfor %}"},
      {"kept lists",
       "{% set x = range(10000) %}{% set l = [] %}{% for i in range(100000) %}{% set y = l.append(x[:]) %}{% endfor "
       "%}"},
      {"kept sorted lists",
       "{% set x = range(10000) %}{% set l = [] %}{% for i in range(100000) %}{% set y = l.append(x | sort) %}{% "
       "endfor %}"},
      {"doubled lists",
       "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}"},
      {"lists of lists, printed", twice + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}"},
      {"lists of lists, as JSON", twice + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}"},
      {"lists of lists, as text", twice + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | string }}"},
      {"lists of lists, compared", twice + "{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ ns.l == ns.l }}"},
      {"lists of lists, as keys", twice + "{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: 1} }}"},
      {"indented far", "{{ 'a' | indent(10000000000, true) }}"},
      {"indented often", "{{ ('a\\n' * 100000) | indent(100000) }}"},
      {"JSON indented far", "{{ [[1]] | tojson(indent=2000000000) }}"},
      {"JSON indented often", "{{ [range(1000), range(1000)] | tojson(indent=1000000) }}"},
      {"a macro in itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
      {"macros in each other",
       "{% macro m(n) %}{{ n() }}{% endmacro %}{% macro k() %}{{ m(k) }}{% endmacro %}{{ k() }}"},
      {"a macro called twice",
       "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}"},
      {"a list in itself, printed", "{% set l = [] %}{% set y = l.append(l) %}{{ l }}"},
      {"a list in itself, as JSON", "{% set l = [] %}{% set y = l.append(l) %}{{ l | tojson }}"},
      {"a list in itself, as text", "{% set l = [] %}{% set y = l.append(l) %}{{ 'a' ~ l }}"},
      {"a namespace in itself", "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns | tojson }}"},
  };
}

/// These only would end the process.
std::vector<Hostile> deadly() {
  // Sanitizers are slow, and their frames are larger.
  const std::string times_n = fmt::format("{{% for i in range({}) %}}", test::kSanitized ? 20'000 : 150'000);
  const std::string grow = "{% set ns = namespace(l=[1]) %}" + times_n;
  return {
      {"a list in a list", grow + "{% set ns.l = [ns.l] %}{% endfor %}"},
      {"an object in an object", grow + "{% set ns.l = {'a': ns.l} %}{% endfor %}"},
      {"a function of a function", grow + "{% set ns.l = [ns.l].append %}{% endfor %}"},
      {"a list that grows inside", "{% set ns = namespace(l=[]) %}{% set all = ns.l %}" + times_n +
                                       "{% set n = [] %}{% set y = ns.l.append(n) %}{% set ns.l = n %}{% endfor %}"},
      {"no divisor", "{{ 1 is divisibleby(0) }}"},
      {"the least divisor", "{{ (-9223372036854775807 - 1) is divisibleby(-1) }}"},
      {"a great step", "{{ 'abcdefghij'[5:10:9223372036854775807] }}"},
      {"a great step back", "{{ 'abcdefghij'[5:1:-9223372036854775807] }}"},
      {"an order that contradicts itself",
       "{{ (" + times(30, "['nan' | float, 1, '10', 9, 'a', 2.5] + ") + "[1]) | sort }}"},
  };
}

/// It is run only when a message says so: at load nothing happens.
std::string when_asked(const std::string& source) {
  return "{% if messages[0].content == 'now' %}" + source + "{% endif %}-";
}

/// `more`: bytes of another message. A longer chat may take more.
std::string render(const ChatTemplate& chat, const std::string& content, std::size_t more = 0) {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = content},
                                             {.role = "assistant", .content = times(more, "-")},
                                             {.role = "user", .content = "?"}};
  return chat.render(messages, TurnEnd::kOpenTurn);
}

/// Sanitizers would end the test where llama.cpp turns the greatest integers to doubles and back (jinja/value.h), and
/// where values that hold themselves are never freed.
std::vector<Hostile> tried(std::vector<Hostile> hostiles) {
  const auto is_seen_by_sanitizers = [](const Hostile& hostile) {
    return hostile.source.contains("9223372036854775807") || hostile.source.contains("l.append(l)") ||
           hostile.source.contains("ns.ns = ns");
  };
  if (test::kSanitized) std::erase_if(hostiles, is_seen_by_sanitizers);
  return hostiles;
}

class Hostiles : public testing::TestWithParam<Hostile> {};
const auto kName = [](const auto& info) {
  std::string name;
  for (const char c : std::string(info.param.name)) name += std::isalnum(c) != 0 ? c : '_';
  return name;
};

class TooLarge : public Hostiles {};
TEST_P(TooLarge, IsRefusedBeforeItIsParsed) {
  EXPECT_THAT(refusal(GetParam().source), AllOf(HasSubstr("chat template: the template has "), HasSubstr("are taken")));
}
INSTANTIATE_TEST_SUITE_P(Template, TooLarge, testing::ValuesIn(too_large()), kName);

class Endless : public Hostiles {};
TEST_P(Endless, IsRefusedAtLoad) {
  EXPECT_THAT(refusal(GetParam().source), HasSubstr("chat template: the template "));
}
TEST_P(Endless, IsRefusedAtARequest) {
  const ChatTemplate chat(test::vocabulary(), when_asked(GetParam().source));
  try {
    render(chat, "now");
    ADD_FAILURE() << "it was rendered";
  } catch (const TemplateError& e) {
    EXPECT_THAT(e.what(), HasSubstr("chat template: the template "));
  }
  EXPECT_EQ(render(chat, "later"), "-") << "a limit is one request's";
}
INSTANTIATE_TEST_SUITE_P(Template, Endless, testing::ValuesIn(tried(endless())), kName);

class Deadly : public Hostiles {};
TEST_P(Deadly, LeavesTheProcessAlive) {
  const ChatTemplate chat(test::vocabulary(), when_asked(GetParam().source));
  try {
    EXPECT_THAT(render(chat, "now", 1'000'000), testing::EndsWith("-"));
  } catch (const TemplateError& e) {
    if (!test::kEmulated)  // there the time may be over first
      EXPECT_THAT(e.what(), testing::Not(HasSubstr("the template "))) << "a limit hides what is tested";
  }
  EXPECT_EQ(render(chat, "later"), "-");
}
INSTANTIATE_TEST_SUITE_P(Template, Deadly, testing::ValuesIn(tried(deadly())), kName);

TEST(TemplateLimits, LongChatsPass) {
  const ChatTemplate chat(test::vocabulary());
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 4000; ++i)
    messages.push_back({.role = i % 2 == 0 ? "user" : "assistant", .content = times(100, "word ")});
  EXPECT_GT(chat.render(messages, TurnEnd::kOpenTurn).size(), 2'000'000);
}

/// A client's text takes time in proportion to its length: 2 MB of what a template looks for took minutes.
TEST(TemplateLimits, TextsThatATemplateCutsOrReplacesPass) {
  const ChatTemplate chat(
      test::vocabulary(),
      "{{ messages[0].content.split('ab') | length }} {{ messages[0].content | replace('ab', 'c') | length }} "
      "{{ messages[0].content | replace('ab', 'abc') | length }}");
  EXPECT_EQ(render(chat, times(1'000'000, "ab")), "1000001 1000000 3000000");
}

}  // namespace
}  // namespace coppice::text
