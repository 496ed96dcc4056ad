// Asio's and Beast's own code, compiled once instead of into every file that includes them.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
