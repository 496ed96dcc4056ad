# Mends libmtmd's encoder of InternVL's pictures: it puts the class token behind the patches, but the table of positions has it in front, so
# that each patch gets the position of the one before it. The rows are 9 % away from those of the model's authors
# (tests/vision/projector_test.cpp), and 0.1 % with this.
set(mended_internvl "${CMAKE_CURRENT_BINARY_DIR}/mended/internvl.cpp")
file(READ "${LLAMA_SOURCE_DIR}/tools/mtmd/models/internvl.cpp" text)
mend("internvl.cpp" "inp = ggml_concat(ctx0, inp, cls_repeated, 1);" "inp = ggml_concat(ctx0, cls_repeated, inp, 1);")
mend("internvl.cpp" "        cur->nb[1], cur->nb[2], 0);\n    cur = ggml_cont(ctx0, cur);" "        cur->nb[1], cur->nb[2], cur->nb[1]);\n    cur = ggml_cont(ctx0, cur);")
file(CONFIGURE OUTPUT "${mended_internvl}" CONTENT "${text}" @ONLY)

get_target_property(sources mtmd SOURCES)
list(TRANSFORM sources REPLACE "^models/internvl.cpp$" "${mended_internvl}")
if(NOT mended_internvl IN_LIST sources)
  message(FATAL_ERROR "mtmd doesn't compile models/internvl.cpp: look where it is now.")
endif()
set_target_properties(mtmd PROPERTIES SOURCES "${sources}")
target_include_directories(mtmd PRIVATE "${LLAMA_SOURCE_DIR}/tools/mtmd/models")
