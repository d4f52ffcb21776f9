# Completion files, as `trainmon completion SHELL` prints them, where bash and zsh look for them.
set(completions ${CMAKE_CURRENT_BINARY_DIR}/completions)
set(from ${completions})
if(TRAINMON_HOST_BUILD)
  set(from ${TRAINMON_HOST_BUILD}/src/cli/completions)
else()
  add_custom_command(TARGET trainmon POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${completions}
    COMMAND sh -c "\"$0\" completion bash >\"$1\"" $<TARGET_FILE:trainmon> ${completions}/trainmon
    COMMAND sh -c "\"$0\" completion zsh >\"$1\"" $<TARGET_FILE:trainmon> ${completions}/_trainmon
    VERBATIM COMMENT "completion files")
endif()
install(FILES ${from}/trainmon DESTINATION ${SKBUILD_DATA_DIR}/share/bash-completion/completions)
install(FILES ${from}/_trainmon DESTINATION ${SKBUILD_DATA_DIR}/share/zsh/site-functions)
