// Boost.Process v2 of Boost 1.81 links only when its sources are compiled once, here.
#include <boost/process/v2/src.hpp>
