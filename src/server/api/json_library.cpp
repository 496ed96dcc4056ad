// Boost.JSON's own code, compiled once: the package has headers only.
#include <boost/json/src.hpp>
