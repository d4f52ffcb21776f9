trainmon_test(detect ONE_THREAD SOURCES detect/buffers_test.cpp detect/by_hand_test.cpp detect/config_test.cpp detect/ended_gradients_test.cpp detect/engine_test.cpp detect/findings_test.cpp detect/gradient_ranges_test.cpp detect/habits_test.cpp
  detect/input_limits_test.cpp detect/input_ranges_test.cpp detect/input_test.cpp detect/norm_test.cpp detect/parted_test.cpp detect/present_test.cpp detect/reduce_test.cpp detect/repeated_arguments_test.cpp detect/replicas_test.cpp detect/resumed_moments_test.cpp detect/resumed_weights_test.cpp
  detect/shards_test.cpp detect/shared_arguments_test.cpp
  detect/canaries_test.cpp detect/recomputed_test.cpp detect/stale_gradients_test.cpp detect/start_steps_test.cpp detect/start_test.cpp detect/step_checks_test.cpp detect/step_sizes_test.cpp
  detect/untrained_test.cpp detect/weights_test.cpp DEPENDS detect stats)
