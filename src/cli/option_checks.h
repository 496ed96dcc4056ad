// What a value of an option must be. The checks of CLI11 with plainer errors, or that it lacks.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace coppice::cli {

/// For unsigned numbers, which would read "-5" as a huge one.
CLI::Validator not_negative();

/// Bytes, also in units: "512MiB", "1.5GB", "2g". Those with an i, such as GiB, are powers of 1024, others of 1000.
CLI::Validator size();

/// For the transform() of an option: other servers' words, each with ours. Other text stays.
CLI::Validator read_as(std::map<std::string, std::string> same);

/// llama-server's words for on, off and auto, as `on`, `off` and "auto".
CLI::Validator on_and_off(const std::string& on, const std::string& off);

/// Values of other servers that are refused, each with a part of a sentence that says why, and what to write.
CLI::Validator why_not(std::map<std::string, std::string> refused);

/// One value; of any other `why` says why not, and what to write.
CLI::Validator only(std::string value, std::string why);

/// A file with a chat template.
CLI::Validator template_file();

/// As CLI::Range, but refuses NaN, which is neither below nor above.
CLI::Validator between(double least, double most);

/// A whole number: at least `least`, or one of `others`, which mean something else.
CLI::Validator whole_from(int least, std::vector<int> others);

/// A time from `least` to a million seconds (eleven days: more would overflow some clocks).
CLI::Validator seconds_from(double least);

/// The text of a JSON object of variables that a chat template may be given.
CLI::Validator template_variables();

/// Not "", as an unset variable gives it.
CLI::Validator given();

/// Web pages' origins, separated by commas; "*", "localhost", "null". Without a scheme one would never match what a
/// browser sends.
CLI::Validator origins();

}  // namespace coppice::cli
