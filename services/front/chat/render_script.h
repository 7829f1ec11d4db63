#pragma once

namespace ete::front {

// The text of render_helper.py.
const char* render_script();

}  // namespace ete::front
