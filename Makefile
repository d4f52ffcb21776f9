# What a developer types. Every target brings the machine to a working state first (scripts/setup.sh).
.PHONY: setup demo test docs bench count-instructions format asan tsan torture dist test-aarch64 test-frameworks test-peer test-gpu
.PHONY: faults gallery test-bridges test-browser test-recipes test-planted test-scale test-dist test-versions test-checkout

setup:
	scripts/setup.sh
	cmake --preset dev
	cmake --build --preset dev

demo:
	scripts/setup.sh
	scripts/demo.sh

test:
	scripts/setup.sh
	scripts/test.sh

docs:
	scripts/setup.sh
	scripts/docs.sh

gallery:
	scripts/setup.sh
	scripts/gallery.sh

bench:
	scripts/setup.sh
	scripts/bench.sh $(ARGS)

count-instructions:
	scripts/setup.sh --tools
	scripts/count_instructions.sh $(ARGS)

format:
	scripts/setup.sh --tools
	scripts/format.sh

asan tsan:
	scripts/setup.sh --tools
	scripts/test_cpp.sh $@

torture:
	scripts/setup.sh
	scripts/torture.sh

dist:
	scripts/release_checklist.sh $(ARGS)
	scripts/setup.sh --tools
	scripts/dist.sh

test-aarch64:
	scripts/setup.sh --tools
	scripts/test_aarch64.sh

test-dist:
	scripts/setup.sh
	scripts/test_dist.sh

test-frameworks:
	scripts/setup.sh
	scripts/test_frameworks.sh

test-peer:
	scripts/setup.sh
	scripts/test_peer.sh

faults:
	scripts/setup.sh
	scripts/faults.sh $(ARGS)

test-planted:
	scripts/setup.sh
	scripts/planted.sh

test-scale:
	scripts/setup.sh
	scripts/test_scale.sh

test-gpu:
	scripts/setup.sh
	scripts/test_gpu.sh

test-versions:
	scripts/setup.sh
	scripts/test_versions.sh $(ARGS)

test-bridges:
	scripts/setup.sh
	scripts/test_bridges.sh

test-browser:
	scripts/setup.sh
	scripts/test_browser.sh

test-recipes:
	scripts/setup.sh
	scripts/test_recipes.sh

test-checkout:
	scripts/setup.sh
	scripts/test_checkout.sh
