# Every command here is also in README.md; make only saves typing.
PYTHON ?= python3
VENV ?= .venv
PY = $(VENV)/bin/python

.PHONY: demo web test test-commands test-slow lint gpu

demo: $(VENV)/installed
	@echo "1 of 4: restore photographs and a page, one to four minutes (times are of two quiet cores)"
	$(PY) sample.py docs/street_blurry.jpg --output runs/demo/restored --compare true
	$(PY) sample.py docs/examples --output runs/demo/restored --compare true
	$(PY) sample.py docs/page_blurry.jpg --checkpoint text --output runs/demo/restored
	@echo "2 of 4: train for 40 steps, about a minute"
	$(PY) -m tools.demo --output runs/demo/photos
	$(PY) train.py fit --config configs/demo.yaml
	@echo "3 of 4: score the trained network, about half a minute"
	$(PY) evaluate.py --checkpoint runs/demo/checkpoint --data runs/demo/photos --grid configs/grid/demo.yaml \
		--output runs/demo --panel runs/demo/demo.png --save_presets true --overwrite true
	@echo "4 of 4: restore a photograph with it, a few seconds"
	$(PY) sample.py runs/demo/photos/clock_motion.png --checkpoint runs/demo/checkpoint --output runs/demo \
		--preset perceptual
	@echo "The demo made, in runs/demo:"
	@echo "  restored/         really blurred photographs, restored by maxim, or swift (..._compare.png: before, after)"
	@echo "                    and a blurred page, restored by pretrained/text"
	@echo "  checkpoint/       the trained model, for sample.py --checkpoint and evaluate.py --checkpoint"
	@echo "  report.html       PSNR, SSIM, LPIPS of every sampling setting, plot and images (the numbers: results.csv)"
	@echo "  demo.png          blurry | prediction | sample | mean of samples | std | sharp"
	@echo "  clock_motion.png  photos/clock_motion.png by the model of these few steps: hardly changed"

# Serves a page at http://127.0.0.1:7860 until Ctrl-C.
web: $(VENV)/installed
	$(PY) app.py

# Installs what tests need and the extras, so that what depends on them is tested.
test: $(VENV)/extras
	$(PY) -m pytest -n 2 -rfEs $(PYTEST)

test-commands: $(VENV)/extras
	$(PY) -m pytest -n 2 -rfEs -m "commands and not slow" $(PYTEST)

test-slow: $(VENV)/extras
	$(PY) -m pytest -n 2 -rfEs -m slow

# On a machine with a CUDA device: the tests that need one, and the speed of sampling and training as JSON in runs/gpu.
gpu: $(VENV)/extras
	$(PY) -m pytest -q -m gpu -rs
	$(PY) -m tools.benchmarks.sampling pretrained/lite --device cuda --output runs/gpu/lite.json
	$(PY) -m tools.benchmarks.sampling pretrained/maxim --device cuda --output runs/gpu/maxim.json \
		--cases 'predictor/bf16-channels_last/eager,10/bf16-channels_last/eager,nafnet'
	$(PY) -m tools.benchmarks.training --device cuda --output runs/gpu/training.json \
		--cases 'finetune/default,finetune/on_device,finetune/compiled,paper/default'

# Pyright finds nothing but imports of our own that an editor could not follow.
lint: $(VENV)/extras
	$(PY) -m ruff check .
	$(PY) -m basedpyright --pythonpath $(PY)

$(VENV)/installed: requirements.txt constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -r requirements.txt -c constraints.txt
	touch $(VENV)/installed

$(VENV)/extras: $(VENV)/installed requirements-dev.txt requirements-extra.txt
	$(PY) -m pip install -r requirements-dev.txt -r requirements-extra.txt -c constraints.txt
	touch $(VENV)/extras
