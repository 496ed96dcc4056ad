# Mends four of libmtmd's encoders and a prompt, which tests/vision compare with the model authors' code, and lets its user compute encoders' graphs.
set(mtmd_models "${LLAMA_SOURCE_DIR}/tools/mtmd/models")
get_target_property(mtmd_sources mtmd SOURCES)
# take_mended(FILE): libmtmd is compiled with `text` in place of its file.
function(take_mended file)
  set(mended "${CMAKE_CURRENT_BINARY_DIR}/mended/mtmd/${file}")
  file(CONFIGURE OUTPUT "${mended}" CONTENT "${text}" @ONLY)
  list(TRANSFORM mtmd_sources REPLACE "^${file}$" "${mended}")
  if(NOT mended IN_LIST mtmd_sources)
    message(FATAL_ERROR "mtmd doesn't compile ${file}: look where it is now.")
  endif()
  set(mtmd_sources "${mtmd_sources}" PARENT_SCOPE)
endfunction()

# InternVL's puts the class token behind the patches, but the table of positions has it in front: each patch gets the position of the one
# before it, and the rows are 9 % away from the authors'.
file(READ "${mtmd_models}/internvl.cpp" text)
mend("internvl.cpp" "inp = ggml_concat(ctx0, inp, cls_repeated, 1);" "inp = ggml_concat(ctx0, cls_repeated, inp, 1);")
mend("internvl.cpp" "        cur->nb[1], cur->nb[2], 0);\n    cur = ggml_cont(ctx0, cur);" "        cur->nb[1], cur->nb[2], cur->nb[1]);\n    cur = ggml_cont(ctx0, cur);")
take_mended(models/internvl.cpp)

# Pixtral's (Mistral 3) clears a tensor by scaling memory that nobody has written by 0: where that holds a NaN, all ends of lines are NaN.
file(READ "${mtmd_models}/pixtral.cpp" text)
mend("pixtral.cpp" "        ggml_tensor * tok = ggml_new_tensor_3d(ctx0, tmp->type, n_embd_text, 1, p_y);\n        tok = ggml_scale(ctx0, tok, 0.0); // clear the tensor\n        tok = ggml_add(ctx0, tok, model.token_embd_img_break);\n"
  "        ggml_tensor * tok = ggml_repeat_4d(ctx0, model.token_embd_img_break, n_embd_text, 1, p_y, 1);\n")
take_mended(models/pixtral.cpp)

# Llama 4's puts the rows of a picture into columns.
file(READ "${mtmd_models}/llama4.cpp" text)
mend("llama4.cpp" "        //cur = ggml_permute(ctx0, cur, 0, 2, 1, 3);\n" "        cur = ggml_permute(ctx0, cur, 0, 2, 1, 3);\n")
take_mended(models/llama4.cpp)

# Llama 4's prompt lacks the tokens between tiles, behind their lines, and before the picture as a whole.
file(READ "${LLAMA_SOURCE_DIR}/tools/mtmd/mtmd.cpp" text)
mend("mtmd.cpp" "                    // (more details in mtmd_context constructor)\n                    img_beg = \"<|image_start|>\";\n"
  "                    img_beg = \"<|image_start|>\";\n                    tok_ov_img_start = {lookup_token(\"<|image|>\")};\n                    tok_sli_img_mid = {lookup_token(\"<|tile_x_separator|>\")};\n                    tok_row_end = {lookup_token(\"<|tile_y_separator|>\")};\n                    tok_row_end_trail = true;\n")
take_mended(mtmd.cpp)

# Who sets the hook computes encoders' graphs: on threads of its own, in pieces, and it may end early (src/vision/encoder_threads.h).
file(READ "${LLAMA_SOURCE_DIR}/tools/mtmd/clip.cpp" text)
mend("clip.cpp" "#include <float.h>\n"
  "#include <float.h>\n\nggml_status (*coppice_compute_encoder)(ggml_backend_sched_t, ggml_backend_t cpu, ggml_cgraph *) = nullptr;\n")
mend("clip.cpp" "    auto status = ggml_backend_sched_graph_compute(ctx->sched.get(), gf);\n"
  "    auto status = coppice_compute_encoder ? coppice_compute_encoder(ctx->sched.get(), ctx->backend_cpu, gf)\n                                          : ggml_backend_sched_graph_compute(ctx->sched.get(), gf);\n    if (status == GGML_STATUS_ABORTED) {\n        return false;\n    }\n")
# Gemma 4's takes a patch beyond its table of positions for a fault of the program, which ends. Patches there get the last position.
mend("clip.cpp" "                    pos_x[i] = i % n_cols;\n                    pos_y[i] = i / n_cols;\n"
  "                    pos_x[i] = std::min(i % n_cols, (int) ctx->model.position_embeddings->ne[1] - 1);\n                    pos_y[i] = std::min(i / n_cols, (int) ctx->model.position_embeddings->ne[1] - 1);\n")
take_mended(clip.cpp)

set_target_properties(mtmd PROPERTIES SOURCES "${mtmd_sources}")
target_include_directories(mtmd PRIVATE "${mtmd_models}" "${LLAMA_SOURCE_DIR}/tools/mtmd")
