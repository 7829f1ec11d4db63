# cmake -DFILES=a;b -DFOLDER=DIR -DOUT=FILE.cc -P embed.cmake: the files' bytes as page_data.h declares them.
set(ARRAYS "")
set(ENTRIES "")
set(NUMBER 0)
foreach(NAME IN LISTS FILES)
  file(READ ${FOLDER}/${NAME} BYTES HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," BYTES "${BYTES}")
  string(APPEND ARRAYS "constexpr unsigned char kFile${NUMBER}[] = {${BYTES}};\n")
  string(APPEND ENTRIES "    {\"${NAME}\", kFile${NUMBER}},\n")
  math(EXPR NUMBER "${NUMBER} + 1")
endforeach()
file(WRITE ${OUT} "#include \"services/front/page/page_data.h\"

namespace ete::front {
namespace {

${ARRAYS}
constexpr PageData kFiles[] = {
${ENTRIES}};

}  // namespace

std::span<const PageData> page_data() { return kFiles; }

}  // namespace ete::front
")
