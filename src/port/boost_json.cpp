// Boost.JSON, compiled once instead of into every file that includes it.
#include <boost/json/src.hpp>
