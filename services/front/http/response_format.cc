#include "services/front/http/response_format.h"

#include "services/front/front_error.h"

namespace ete::front {
namespace {

// A name, a schema, and what only describes it: output is of the schema whether or not "strict" asks for it.
void read_json_schema(JsonFields& format, v1::Grammar& grammar) {
  const RequestJson* value = format.find("json_schema");
  if (value == nullptr) refuse_field(format.path_of("json_schema"), "nothing", "an object");
  JsonFields fields(*value, format.path_of("json_schema"));
  if (!fields.string("name")) refuse_field(fields.path_of("name"), "nothing", "a string");
  const RequestJson* schema = fields.find("schema");
  if (schema == nullptr) refuse_field(fields.path_of("schema"), "nothing", "a JSON schema");
  grammar.set_json_schema(schema->dump());
  fields.boolean("strict");
  fields.string("description");
  fields.refuse_others();
}

}  // namespace

void read_response_format(JsonFields& fields, v1::GenerateRequest& settings) {
  const std::optional<std::string> rules = fields.string("grammar");
  if (rules) settings.mutable_grammar()->set_gbnf(*rules);
  const RequestJson* value = fields.find("response_format");
  if (value == nullptr) return;
  JsonFields format(*value, "response_format");
  const std::string type = format.string("type").value_or("");
  if (type == "json_object") {
    settings.mutable_grammar()->set_json_object(true);
  } else if (type == "json_schema") {
    read_json_schema(format, *settings.mutable_grammar());
  } else if (type != "text") {
    refuse_field("response_format.type", shown(type), "text, json_object or json_schema");
  }
  format.refuse_others();
  if (rules && type != "text") refuse_field("grammar", "it beside response_format", "one of them");
}

}  // namespace ete::front
