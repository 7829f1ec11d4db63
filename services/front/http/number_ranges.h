#pragma once

#include <string>
#include <string_view>

namespace ete::front {

// What is accepted where a request has a number that no float holds, in the words of validate(), which cannot
// see it. path: of the value.
std::string accepted_number(std::string_view path);

}  // namespace ete::front
