// Catch2 3 under the header name of Catch2 2, which Debian 12 has. Used only where Catch2 3 is installed.
#pragma once
#include <catch2/catch_all.hpp>

using Catch::Approx;
