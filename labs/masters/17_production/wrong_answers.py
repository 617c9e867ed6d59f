"""Wrong answers to lab 17: what breaks at 3 a.m.? And right ones in an unusual style."""

SAVED = {
    "model": "run.model.state_dict()",
    "optimizer": "run.optimizer.state_dict()",
    "scheduler": "run.scheduler.state_dict()",
    "scaler": "run.scaler.state_dict()",
    "order": "run.loader.order",
    "position": "run.loader.position",
    "loader": "run.loader.generator.get_state()",
    "torch": "torch.get_rng_state()",
    "steps": "run.steps",
}
RESUMED = {
    "model": "run.model.load_state_dict(saved['model'])",
    "optimizer": "run.optimizer.load_state_dict(saved['optimizer'])",
    "scheduler": "run.scheduler.load_state_dict(saved['scheduler'])",
    "scaler": "run.scaler.load_state_dict(saved['scaler'])",
    "order": "run.loader.order = saved['order']",
    "position": "run.loader.position = saved['position']",
    "loader": "run.loader.generator.set_state(saved['loader'])",
    "torch": "torch.set_rng_state(saved['torch'])",
    "steps": "run.steps = saved['steps']",
}


def _resume(*without, copied="copy.deepcopy({})", again="copy.deepcopy(saved)", saved=None, resumed=None, before=""):
    saved, resumed = SAVED | (saved or {}), RESUMED | (resumed or {})
    state = ", ".join(f"'{name}': {value}" for name, value in saved.items() if name not in without and value)
    lines = "\n    ".join(line for name, line in resumed.items() if name not in without)
    return f"""
import copy

def save(run):
    {before or "pass"}
    return {copied.format("{" + state + "}")}

def resume(run, saved):
    saved = {again}
    {lines}
"""


SECONDS = """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    now, saved, failures = 0.0, 0.0, {failures}
    while True:
        piece = min(interval_s, work_s - saved)
        is_done = {done}
        end = {end}
        if failures and failures[0] < end:
            failure = failures.pop(0)
            {failed}
        elif is_done:
            return end
        else:
            now, saved = end, saved + piece
"""


def _seconds(
    failures="list(failures_s)",
    done="saved + piece >= work_s",
    end="now + piece + (0 if is_done else save_s)",
    failed="now = failure + restart_s",
):
    return SECONDS.format(failures=failures, done=done, end=end, failed=failed)


ALERT = """
def alert(samples, limit, hold_s, clear_s):
    rings, ringing, bad_since, good_since = [], False, None, None
    for at_s, value in samples:
        if {bad}:
            {at_bad}
            if {ring}:
                rings.append({time})
                {rung}
        else:
            {at_good}
            if {clear}:
                ringing = False
    return rings
"""


def _alert(
    bad="value is None or not value <= limit",
    at_bad="bad_since, good_since = at_s if bad_since is None else bad_since, None",
    ring="not ringing and at_s - bad_since >= hold_s",
    time="at_s",
    rung="ringing = True",
    at_good="bad_since, good_since = None, at_s if good_since is None else good_since",
    clear="at_s - good_since >= clear_s",
):
    return ALERT.format(bad=bad, at_bad=at_bad, ring=ring, time=time, rung=rung, at_good=at_good, clear=clear)


REPAIRS = {
    11: 'RECOMPUTE = ["Block"]',
    25: "config = {**DEFAULTS, **given}",
    26: 'rank, num_ranks = int(env["RANK"]), int(env["WORLD_SIZE"])',
    34: "from torch.utils.data import DistributedSampler\nsampler = DistributedSampler(texts, num_ranks, rank)\n"
    'loader = DataLoader(texts, batch_size=config["batch"], sampler=sampler)',
    42: "loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, ignore_index=PAD)",
    43: '(2.0**16 * loss / config["micro_batches"]).backward()',
    44: "tokens += batch_BT.numel() * num_ranks",
    47: "for param in model.parameters():\n    param.grad /= 2.0**16\n"
    'nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()',
}


def _repairs(*without, **changed):
    """The right repairs without some lines, or with others: `line_46="optimizer.step()"`."""
    changed = {int(name.removeprefix("line_")): text for name, text in changed.items()}
    return f"repairs = { ({number: text for number, text in REPAIRS.items() if number not in without} | changed)!r}"


def _night(every=5, keep=1, policy="skip", drift_every=5):
    checkpoint, health = {"every": every, "keep": keep}, {"policy": policy, "drift_every": drift_every}
    return f"my_settings = { ({'checkpoint': checkpoint, 'health': health})!r}"


WRONG_ANSWERS = {
    "exact_resume": [
        ("weights alone", _resume(*(set(SAVED) - {"model"})), "scheduler, scaler, steps"),
        ("no momentum", _resume("optimizer"), "when saved: optimizer"),
        ("the schedule begins again", _resume("scheduler"), "learning rate"),
        ("the scale begins again", _resume("scaler"), "loss scale"),
        ("the loader begins again", _resume("order", "position", "loader"), "loader.order, loader.position"),
        ("no position", _resume("position"), "when saved: loader.position"),
        ("no order", _resume("order"), "when saved: loader.order"),
        ("no generator of the loader", _resume("loader"), "when saved: loader.generator"),
        ("no dropout", _resume("torch"), "when saved: torch's generator"),
        ("no number of steps", _resume("steps"), "number of steps"),
        (
            "parameters without buffers",
            _resume(
                saved={"model": "[param.detach() for param in run.model.parameters()]"},
                resumed={"model": "for own, new in zip(run.model.parameters(), saved['model']): own.data.copy_(new)"},
            ),
            "when saved: model",
        ),
        ("references", _resume(copied="{}"), "stays as it is while the run goes on"),
        (
            "a shallow copy",
            _resume(copied="dict({})", saved={"model": "copy.deepcopy(run.model.state_dict())"}),
            "['optimizer']['state']",
        ),
        ("only save copies", _resume(again="saved"), "the same checkpoint can be used again"),
        (
            "empties the checkpoint",
            _resume(again="saved", resumed={"steps": "run.steps = saved.pop('steps')"}).replace(
                "saved['optimizer']", "copy.deepcopy(saved['optimizer'])"
            ),
            "KeyError",
        ),
        (
            "the whole run",
            """
import copy
def save(run):
    return {"run": copy.deepcopy(run.__dict__), "torch": torch.get_rng_state()}
def resume(run, saved):
    run.__dict__.update(copy.deepcopy(saved["run"]))
    torch.set_rng_state(saved["torch"])
""",
            "torch.save can write",
        ),
        ("the data, too", _resume(saved={"data": "run.loader.data"}), "bytes of a checkpoint"),
        (
            "gradients, too",
            _resume(saved={"grads": "[param.grad for param in run.model.parameters()]"}),
            "bytes of a checkpoint on rank 0",
        ),
        ("seeds instead of states", _resume("torch", before="torch.manual_seed(0)"), "save changes nothing"),
        (
            "takes the next batch",
            _resume(before="run.loader.next_batch()"),
            "without the call",
        ),
        (
            "the seed of the generator",
            _resume(
                saved={"loader": "run.loader.generator.initial_seed()"},
                resumed={"loader": "run.loader.generator.manual_seed(saved['loader'])"},
            ),
            "loader.generator",
        ),
        (
            "a seed of torch's",
            _resume(saved={"torch": "torch.initial_seed()"}, resumed={"torch": "torch.manual_seed(saved['torch'])"}),
            "torch's generator",
        ),
        (
            "in a variable of the notebook",
            """
KEPT = {}
import copy
def save(run):
    KEPT[0] = {
        "parts": [copy.deepcopy(p.state_dict()) for p in (run.model, run.optimizer, run.scheduler, run.scaler)],
        "loader": (run.loader.order, run.loader.position, run.loader.generator.get_state()),
        "rest": (run.steps, torch.get_rng_state()),
    }
    return {"kept": 0}
def resume(run, saved):
    kept = copy.deepcopy(KEPT[saved["kept"]])
    for part, state in zip((run.model, run.optimizer, run.scheduler, run.scaler), kept["parts"]):
        part.load_state_dict(state)
    run.loader.order, run.loader.position, generator = kept["loader"]
    run.loader.generator.set_state(generator)
    run.steps, generator = kept["rest"]
    torch.set_rng_state(generator)
""",
            "saw       16 B on all ranks",
        ),
        (
            "on disk",
            _resume(
                copied="kept({})",
                again="torch.load(saved['path'])",
                before="import os, tempfile\n    def kept(state):\n        file, path = tempfile.mkstemp()\n"
                "        os.close(file)\n"
                "        torch.save(state, path)\n        return {'path': path}",
            ),
            "the state is in what save returns",
        ),
        (
            "all steps again",
            """
def save(run):
    return {"seed": torch.initial_seed() - dist.get_rank(), "steps": run.steps, "rank": dist.get_rank()}
def resume(run, saved):
    torch.manual_seed(saved["seed"])
    for part in run.model:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    torch.manual_seed(saved["seed"] + dist.get_rank())
    run.loader.generator.manual_seed(saved["seed"] + 100 * dist.get_rank())
    for _ in range(saved["steps"]):
        run.step()
""",
            "saw       48 B on all ranks",
        ),
        (
            "the data on one rank only",
            _resume(saved={"data": "run.loader.data if dist.get_rank() == 1 else 0"}),
            "times the budget",
        ),
        (
            "a mark in the checkpoint",
            _resume().replace("    saved = ", "    given = saved\n    saved = ") + "    given['is_used'] = True\n",
            "resume leaves the checkpoint as it was",
        ),
        (
            "generators of rank 0 on all ranks",
            _resume(before="state = torch.get_rng_state(); dist.broadcast(state, 0)", saved={"torch": "state"}),
            "weights",
        ),
        (
            "the library's checkpoints",
            """
def save(run):
    from lablib.train import Checkpoints
    return Checkpoints("checkpoints").save({"model": run.model.state_dict()}, run.steps)
def resume(run, saved):
    pass
""",
            "train.Checkpoints",
        ),
        (
            "the library's generators",
            "from lablib.train.generators import generator_states, set_generator_states\n"
            + _resume(saved={"torch": "generator_states()"}, resumed={"torch": "set_generator_states(saved['torch'])"}),
            "train.generator_states",
        ),
        ("nothing is returned", _resume().replace("    return ", "    state = "), "is there a return?"),
        (
            "the library's own",
            "from lablib.labs.lab17 import save_run as save, resume_run as resume\n",
            "your own code",
        ),
    ],
    "seconds_of_run": [
        ("a save at the end", _seconds(end="now + piece + save_s"), "a save after the last work"),
        (
            "work is not lost",
            _seconds(failed="saved += max(0, min(piece, failure - now)); now = failure + restart_s"),
            "is not done again",
        ),
        (
            "an unfinished save counts",
            _seconds(failed="saved += piece if failure >= now + piece else 0; now = failure + restart_s"),
            "a save that a failure interrupts",
        ),
        ("from the beginning", _seconds(failed="now, saved = failure + restart_s, 0.0"), "also the saved work"),
        ("no restart", _seconds(failed="now = failure"), "restarts take no time"),
        (
            "a restart never fails",
            _seconds(failed="now = failure + restart_s; failures = [each for each in failures if each >= now]"),
            "has no effect",
        ),
        (
            "restarts add up",
            _seconds(failed="now = max(now, failure) + restart_s"),
            "the seconds that it still had",
        ),
        ("takes failures from its argument", _seconds(failures="failures_s"), "failures_s stays as it was"),
        (
            "an interval that includes the save",
            _seconds(end="now + piece").replace("saved + piece\n", "saved + piece - save_s\n"),
            "",
        ),
        (
            "no failures",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    return work_s + save_s * (-(-work_s // interval_s) - 1)
""",
            "the second of the end",
        ),
        (
            "a save too many if the interval divides the work",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    now, saved, failures = 0.0, 0.0, list(failures_s)
    while saved < work_s:
        piece = min(interval_s, work_s - saved)
        end = now + piece + (save_s if piece == interval_s else 0.0)
        if failures and failures[0] < end:
            now = failures.pop(0) + restart_s
        else:
            now, saved = end, saved + piece
    return now
""",
            "divides the work",
        ),
        (
            "in the mean",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    pieces = -(-work_s // interval_s)
    return work_s + (pieces - 1) * save_s + len(failures_s) * (interval_s / 2 + restart_s)
""",
            "a failure before the first save",
        ),
        (
            "each failure counts, also after the end",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    now, saved = 0.0, 0.0
    for failure in failures_s:
        while now + interval_s + save_s <= failure:
            now, saved = now + interval_s + save_s, saved + interval_s
        now = failure + restart_s
    while saved + interval_s < work_s:
        now, saved = now + interval_s + save_s, saved + interval_s
    return now + work_s - saved
""",
            "failures after the end only",
        ),
        (
            "the last piece never fails",
            _seconds().replace("failures[0] < end", "failures[0] < end and not is_done"),
            "a failure in the last piece",
        ),
        (
            "a failure just after the end",
            _seconds().replace("failures[0] < end", "failures[0] < now + piece + save_s"),
            "where a last save would be",
        ),
        ("rounds", _seconds().replace("return end", "return round(end, 3)"), "drawn at random"),
        (
            "the library's overhead",
            """
from lablib.train import simulated_overhead
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    return work_s * (1 + simulated_overhead(interval_s, save_s, work_s / len(failures_s), restart_s))
""",
            "train.simulated_overhead",
        ),
        ("whole seconds", _seconds().replace("return end", "return round(end)"), "the second of the end"),
        ("nothing is returned", _seconds().replace("return end", "return None"), "is there a return?"),
    ],
    "alert": [
        ("rings at every bad sample", _alert(ring="True"), "for less than hold_s"),
        ("rings as long as it is bad", _alert(rung="pass"), "it rings once"),
        (
            "NaN is good, but for one object",
            "import math\n" + _alert(bad="value in (None, math.nan) or value > limit"),
            "(NaN is bad",
        ),
        ("None is good", _alert(bad="value is not None and not value <= limit"), "None is bad"),
        ("no case for None", _alert(bad="not value <= limit"), "TypeError"),
        ("at the limit", _alert(bad="value is None or not value < limit"), "once at the limit"),
        ("longer than hold_s", _alert(ring="not ringing and at_s - bad_since > hold_s"), "exactly hold_s"),
        ("longer than clear_s", _alert(clear="at_s - good_since > clear_s"), "exactly clear_s"),
        ("ready at once", _alert(clear="True"), "less than clear_s"),
        (
            "a good sample does not end the hold",
            _alert(at_good="good_since = at_s if good_since is None else good_since"),
            "begins the hold again",
        ),
        (
            "a bad sample does not end the recovery",
            _alert(at_bad="bad_since = at_s if bad_since is None else bad_since"),
            "never clear_s at once",
        ),
        ("the time when it became bad", _alert(time="bad_since"), "exactly hold_s"),
        (
            "counts samples",
            """
def alert(samples, limit, hold_s, clear_s):
    rings, ringing, bad, good = [], False, -1, -1
    for at_s, value in samples:
        if value is None or not value <= limit:
            bad, good = bad + 1, -1
            if not ringing and bad >= hold_s:
                rings.append(at_s)
                ringing = True
        else:
            bad, good = -1, good + 1
            ringing = ringing and good < clear_s
    return rings
""",
            "seconds count, not samples",
        ),
        ("the limit by hand", _alert(bad="value is None or not value <= 12.0"), "the limit"),
        (
            "second 0 is no time",
            _alert(at_bad="bad_since, good_since = bad_since or at_s, None"),
            "bad from the first sample on",
        ),
        (
            "0 is no value",
            _alert(bad="value is None or value != value or (value and value > limit)"),
            "0 is bad if the limit is below",
        ),
        (
            "NaN does not end the recovery",
            _alert(
                at_bad="bad_since = at_s if bad_since is None else bad_since\n"
                "            good_since = good_since if value is not None and value != value else None"
            ),
            "NaN begins the recovery again",
        ),
        (
            "times that equal all others",
            "class Any(float):\n    def __eq__(self, other):\n        return True\n" + _alert(time="Any(limit)"),
            "bad for exactly hold_s",
        ),
        (
            "the library's rules",
            """
from lablib.train import AlertRule, Alerts
def alert(samples, limit, hold_s, clear_s):
    rules = Alerts([AlertRule("x", limit, for_s=hold_s)])
    return [e.time_s for t, v in samples for e in rules.observe(t, {"x": v}) if e.state == "firing"]
""",
            "train.Alerts",
        ),
        ("a bool", _alert().replace("return rings", "return bool(rings)"), "a list of times"),
        ("nothing is returned", _alert().replace("return rings", "print(rings)"), "is there a return?"),
        ("the library's own", "from lablib.labs.lab17 import alerts as alert\n", "your own code"),
    ],
    "repairs": [
        ("nothing is repaired", "repairs = {}", "saw       0, 2"),
        (
            "the rank on a node of its own",
            _repairs(line_26='rank, num_ranks = int(env["RANK"]), 2'),
            "Invalid rank",
        ),
        ("no sampler", _repairs(34), "saw       8 of 32"),
        (
            "no scale",
            _repairs(line_43='(loss / config["micro_batches"]).backward()' + "  # as it was"),
            "gradients of activations",
        ),
        (
            "the scale is not undone",
            _repairs(line_47='nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()'),
            "with the bound 1000",
        ),
        (
            "clips before the scale is undone",
            _repairs(
                line_47='nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\n'
                "for param in model.parameters():\n    param.grad /= 2.0**16\noptimizer.step()"
            ),
            "largest gradient norm at an update",
        ),
        (
            "does not clip",
            _repairs(line_47="for param in model.parameters():\n    param.grad /= 2.0**16\noptimizer.step()"),
            "the configured 0.",
        ),
        ("counts twice", _repairs(44), "tokens in the last line of the log"),
        ("a policy that never matches", _repairs(11), "peak memory of activations"),
        (
            "a policy of other modules",
            _repairs(line_11=REPAIRS[11].replace("Block", "Linear")),
            "kB",
        ),
        ("padding in the labels", _repairs(42), "labels of the loss that are padding"),
        (
            "a sum over a fixed number",
            _repairs(
                line_42="loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, ignore_index=PAD, "
                'reduction="sum") / 100'
            ),
            "about 0.36",
        ),
        ("the configuration is not applied", _repairs(25), "saw       0.001"),
        (
            "the numbers of the configuration by hand",
            _repairs(line_25='config = {**given, **DEFAULTS, "lr": 0.003, "clip": 0.1}'),
            "",
        ),
        ("a line that was right", _repairs(line_28="torch.manual_seed(1)"), "line 28 was not at fault"),
        (
            "an innocent line among eight",
            _repairs(
                11,
                line_25="global RECOMPUTE\nRECOMPUTE = ['Block']\nconfig = {**DEFAULTS, **given}",
                line_27="device = torch.get_default_device()  # of this rank",
            ),
            "line 27 was not at fault",
        ),
        (
            "BF16",
            _repairs(
                43,
                line_39="with torch.autocast(device.type, dtype=torch.bfloat16):",
                line_47='nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()',
            ),
            "outputs of layers in bfloat16",
        ),
        (
            "FP32",
            _repairs(
                43,
                line_39="with torch.autocast(device.type, dtype=torch.float16, enabled=False):",
                line_47='nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\noptimizer.step()',
            ),
            "outputs of layers in float32",
        ),
        ("another scale is undone", _repairs(line_47=REPAIRS[47].replace("**16", "**13")), "about 0.36"),
        ("the sum of the micro-batches", _repairs(line_43="(2.0**16 * loss).backward()"), "about 0.36"),
        ("half of the mean", _repairs(line_43="(2.0**15 * loss).backward()"), "told lr"),
        ("clips to half", _repairs(line_47=REPAIRS[47].replace('["clip"]', '["clip"] / 2')), "the configured 0."),
        ("clips to a number", _repairs(line_47=REPAIRS[47].replace('config["clip"]', "0.05")), "saw       0.05"),
        (
            "clips before the average",
            _repairs(
                line_45="for param in model.parameters():\n    param.grad /= 2.0**16\n"
                'nn.utils.clip_grad_norm_(model.parameters(), config["clip"])\nfor param in model.parameters():',
                line_47="optimizer.step()  # of clipped gradients",
            ),
            "largest gradient norm at an update",
        ),
        (
            "one text at once",
            _repairs(
                11,
                line_10='DEFAULTS = {"lr": 1e-3, "clip": 0.2, "batch": 1, "micro_batches": 8}',
                line_38="batch_BT = next(batches).to(device)[:1]",
            ),
            "1 texts at once",
        ),
        (
            "narrow blocks",
            _repairs(11, line_18="self.up, self.down = nn.Linear(width, width // 4), nn.Linear(width // 4, width)"),
            "5,816 parameters",
        ),
        ("a number of tokens", _repairs(line_44="tokens += 4 * 33 * 4"), "on 2 ranks"),
        ("a number of ranks", _repairs(line_26='rank, num_ranks = int(env["RANK"]), 4'), "StopIteration"),
        (
            "padding with another label",
            _repairs(line_42="loss = F.cross_entropy(logits_BTV.float().flatten(0, 1)[2:], labels.clamp(min=1)[2:])"),
            "labels of the loss that are padding",
        ),
        (
            "another loss is trained",
            _repairs(
                line_42=REPAIRS[42]
                + "\nloss = F.nll_loss(logits_BTV.float().flatten(0, 1).log_softmax(-1)[1:], labels[1:])"
            ),
            "labels of the loss that are padding",
        ),
        (
            "a label too few",
            _repairs(
                line_42="keep = labels != PAD\nkeep[0] = False\n"
                "loss = F.cross_entropy(logits_BTV.float().flatten(0, 1)[keep], labels[keep])"
            ),
            "saw       0 of",
        ),
        (
            "the library measures itself",
            _repairs(line_1="from functools import partial\nfrom lablib.studies import faulty_script"),
            "your own code",
        ),
        ("a line as it was", _repairs(line_27="device = torch.get_default_device()"), "line 27 is as it was"),
        ("no such line", _repairs(line_90="pass"), "numbers of lines"),
        ("does not parse", _repairs(line_44="tokens +="), "SyntaxError"),
        ("another name", _repairs(line_44="tokens += batch.numel() * num_ranks"), "NameError"),
        ("a list", "repairs = [11, 25, 26, 34, 42, 43, 44, 47]", "repairs are a dict"),
    ],
    "must_collect": [
        (
            "each rank for itself",
            """
def must_collect(garbage_bytes, limit_bytes):
    return garbage_bytes > limit_bytes
""",
            "all ranks decide the same",
        ),
        (
            "only if all are over the limit",
            """
def must_collect(garbage_bytes, limit_bytes):
    is_over = torch.tensor(float(garbage_bytes > limit_bytes))
    dist.all_reduce(is_over, op=dist.ReduceOp.MIN)
    return is_over.item() > 0
""",
            "they collect where a rank has more than",
        ),
        (
            "the sum of all ranks against the limit",
            """
def must_collect(garbage_bytes, limit_bytes):
    total = torch.tensor(float(garbage_bytes))
    dist.all_reduce(total)
    return total.item() > limit_bytes
""",
            "they collect where a rank has more than",
        ),
        (
            "a call only where it is over",
            """
def must_collect(garbage_bytes, limit_bytes):
    if garbage_bytes > limit_bytes:
        dist.all_reduce(torch.ones(1))
        return True
    return False
""",
            "every rank makes the same calls",
        ),
        (
            "at the limit, too",
            """
def must_collect(garbage_bytes, limit_bytes):
    is_over = torch.tensor(float(garbage_bytes >= limit_bytes))
    dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
    return is_over.item() > 0
""",
            "they collect where a rank has more than",
        ),
        (
            "all numbers to all ranks",
            """
def must_collect(garbage_bytes, limit_bytes):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, garbage_bytes)
    return max(found) > limit_bytes
""",
            "bytes of a rank's communication per step",
        ),
        (
            "always",
            """
def must_collect(garbage_bytes, limit_bytes):
    return True
""",
            "they collect where a rank has more than",
        ),
        (
            "the library decides",
            """
from lablib.train.health import worst_of_ranks
def must_collect(garbage_bytes, limit_bytes):
    x = torch.tensor(float(garbage_bytes > limit_bytes))
    return worst_of_ranks(x, x)[0] > 0
""",
            "your own code",
        ),
        (
            "a tensor",
            """
def must_collect(garbage_bytes, limit_bytes):
    is_over = torch.tensor(float(garbage_bytes > limit_bytes))
    dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
    return is_over
""",
            "each rank returns True or False",
        ),
    ],
    "diagnose": [
        (
            "the shortest list",
            """
def diagnose(calls):
    fewest = min(map(len, calls))
    return fewest, [rank for rank, one in enumerate(calls) if len(one) == fewest]
""",
            "the first place where ranks disagree",
        ),
        (
            "as far as the shortest list",
            """
def diagnose(calls):
    for place in range(min(map(len, calls))):
        here = [one[place] for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            return place, differ
    return None
""",
            "the first place where ranks disagree",
        ),
        (
            "rank 0 is always right",
            """
def diagnose(calls):
    for place in range(max(map(len, calls))):
        here = [one[place] if place < len(one) else None for one in calls]
        if differ := [rank for rank, call in enumerate(here) if call != here[0]]:
            return place, differ
    return None
""",
            "the first place where ranks disagree",
        ),
        (
            "names only",
            """
def diagnose(calls):
    for place in range(max(map(len, calls))):
        here = [one[place][0] if place < len(one) else None for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            return place, differ
    return None
""",
            "the first place where ranks disagree",
        ),
        (
            "the last place",
            """
def diagnose(calls):
    found = None
    for place in range(max(map(len, calls))):
        here = [one[place] if place < len(one) else None for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            found = place, differ
    return found
""",
            "the first place where ranks disagree",
        ),
        (
            "one rank only",
            """
def diagnose(calls):
    for place in range(max(map(len, calls))):
        here = [one[place] if place < len(one) else None for one in calls]
        usual = max(here, key=here.count)
        for rank, call in enumerate(here):
            if call != usual:
                return place, [rank]
    return None
""",
            "two ranks",
        ),
        (
            "the lists are used up",
            """
def diagnose(calls):
    place = 0
    while any(calls):
        here = [one.pop(0) if one else None for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            return place, differ
        place += 1
    return None
""",
            "the lists are not changed",
        ),
        (
            "an empty list where all agree",
            """
def diagnose(calls):
    for place in range(max(map(len, calls))):
        here = [one[place] if place < len(one) else None for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            return place, differ
    return 0, []
""",
            "all agree",
        ),
    ],
    "night": [
        ("rare saves", _night(every=12, drift_every=12), "steps computed again"),
        ("frequent saves", _night(every=2, drift_every=6), "5 saves"),
        ("frequent comparisons", _night(drift_every=1), "5 comparisons"),
        ("no comparison", _night(drift_every=0), "comparisons of the replicas"),
        ("saves between the comparisons", _night(every=5, drift_every=6), "another loss in step"),
        ("fewer comparisons than saves", _night(every=5, drift_every=10), "another loss in step"),
        ("two newest checkpoints", _night(keep=2), "room for the newest checkpoints"),
        ("the run stops at NaN", _night(policy="stop"), "the run reaches its end"),
        ("NaN is not looked for", _night(policy="off"), "the run reaches its end"),
        ("no such policy", _night(policy="ignore"), "`lab train` accepts the settings"),
        ("a text", 'my_settings = "every=5"', "the settings are a dict of dicts"),
        ("another section", 'my_settings = {"optimizer": {"lr": 0.0}}', "only the four values are chosen"),
        ("a list", 'my_settings = [{"checkpoint": {"every": 5}}]', "the settings are a dict of dicts"),
    ],
}

RIGHT_ANSWERS = {
    "exact_resume": [
        (
            "through a file in memory",
            """
import io
def save(run):
    file = io.BytesIO()
    parts = {k: v.state_dict() for k, v in vars(run).items() if hasattr(v, "state_dict")}
    loader = {k: v for k, v in vars(run.loader).items() if k in ("order", "position")}
    torch.save([parts, loader, run.loader.generator.get_state(), torch.get_rng_state(), run.steps], file)
    file.seek(0)
    return torch.load(file, weights_only=True)
def resume(run, saved):
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    parts, loader, generator, state, run.steps = torch.load(file)
    for name, value in parts.items():
        getattr(run, name).load_state_dict(value)
    vars(run.loader).update(loader)
    run.loader.generator = torch.Generator()
    run.loader.generator.set_state(generator)
    torch.set_rng_state(state)
""",
        ),
        ("an order in a list", _resume(saved={"order": "run.loader.order.tolist()"})),
        (
            "the rest of the order, and a tensor of numbers",
            """
import copy
def save(run):
    rest = run.loader.order[run.loader.position:].clone()
    states = [copy.deepcopy(getattr(run, n).state_dict()) for n in ("model", "optimizer", "scheduler", "scaler")]
    return {"states": states, "rest": rest, "g": (run.loader.generator.get_state(), torch.get_rng_state()),
            "n": torch.tensor(run.steps)}
def resume(run, saved):
    for n, state in zip(("model", "optimizer", "scheduler", "scaler"), saved["states"]):
        getattr(run, n).load_state_dict(copy.deepcopy(state))
    run.loader.order, run.loader.position = saved["rest"].clone(), 0
    run.loader.generator.set_state(saved["g"][0])
    torch.set_rng_state(saved["g"][1])
    run.steps = saved["n"].item()
""",
        ),
        (
            "rank 0 saves what is equal on all ranks",
            """
import copy
def save(run):
    own = {"buffers": [each.clone() for each in run.model.buffers()], "steps": run.steps}
    own |= {"order": run.loader.order, "position": run.loader.position}
    own |= {"generators": [run.loader.generator.get_state(), torch.get_rng_state()]}
    if dist.get_rank() == 0:
        names = "model", "optimizer", "scheduler", "scaler"
        own["equal"] = {name: copy.deepcopy(getattr(run, name).state_dict()) for name in names}
    return own
def resume(run, saved):
    box = [saved.get("equal")]
    dist.broadcast_object_list(box, 0)
    for name, state in copy.deepcopy(box[0]).items():
        getattr(run, name).load_state_dict(state)
    for own, value in zip(run.model.buffers(), saved["buffers"]):
        own.copy_(value)
    run.loader.order, run.loader.position, run.steps = (saved[name] for name in ("order", "position", "steps"))
    run.loader.generator.set_state(saved["generators"][0])
    torch.set_rng_state(saved["generators"][1])
""",
        ),
        (
            "compressed",
            """
import io, zlib
def save(run):
    file, parts = io.BytesIO(), (run.model, run.optimizer, run.scheduler, run.scaler)
    generators = [run.loader.generator.get_state(), torch.get_rng_state()]
    loader = [run.loader.order.tolist(), run.loader.position]
    torch.save([[part.state_dict() for part in parts], loader, generators, run.steps], file)
    return {"compressed": torch.tensor(list(zlib.compress(file.getvalue())), dtype=torch.uint8)}
def resume(run, saved):
    file = io.BytesIO(zlib.decompress(bytes(saved["compressed"].tolist())))
    states, (order, run.loader.position), generators, run.steps = torch.load(file, weights_only=True)
    for part, state in zip((run.model, run.optimizer, run.scheduler, run.scaler), states):
        part.load_state_dict(state)
    run.loader.order = torch.tensor(order)
    run.loader.generator.set_state(generators[0])
    torch.set_rng_state(generators[1])
""",
        ),
    ],
    "seconds_of_run": [
        (
            "from failure to failure",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    start, saved = 0.0, 0.0
    for failure in sorted(failures_s) + [float("inf")]:
        now = start
        while now <= failure:
            if work_s - saved <= interval_s:
                if now + work_s - saved <= failure:
                    return now + work_s - saved
                break
            if now + interval_s + save_s > failure:
                break
            now += interval_s + save_s
            saved += interval_s
        start = failure + restart_s
""",
        ),
        (
            "recursive, from the first failure on",
            """
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    stack = (0.0, work_s, 0)
    while True:
        now, left, k = stack
        if k < len(failures_s) and failures_s[k] < now:
            stack = failures_s[k] + restart_s, left, k + 1
            continue
        cost = left if left <= interval_s else interval_s + save_s
        if k < len(failures_s) and failures_s[k] < now + cost:
            stack = failures_s[k] + restart_s, left, k + 1
        elif left <= interval_s:
            return now + left
        else:
            stack = now + cost, left - interval_s, k
""",
        ),
        (
            "fractions, in a class",
            """
from fractions import Fraction
class Seconds:
    def __call__(self, *given):
        *given, failures = given
        work, interval, save, restart = map(Fraction, given)
        now, failures = Fraction(0), [*map(Fraction, failures)]
        while True:
            last = work <= interval
            cost = work if last else interval + save
            if failures and failures[0] < now + cost:
                now = failures.pop(0) + restart
            elif last:
                return now + cost
            else:
                now, work = now + cost, work - interval
seconds_of_run = Seconds()
""",
        ),
        (
            "calls itself, with tensors",
            """
import torch

def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s, now=torch.tensor(0.0, dtype=torch.float64)):
    cost = work_s if work_s <= interval_s else interval_s + save_s
    if failures_s and failures_s[0] < now + cost:
        now, failures_s = failures_s[0] + restart_s + 0 * now, failures_s[1:]
    elif work_s <= interval_s:
        return now + cost
    else:
        now, work_s = now + cost, work_s - interval_s
    return seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s, now)
""",
        ),
        (
            "a queue of events",
            """
import heapq
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    queue, left, attempt = [(at_s, -1) for at_s in failures_s], work_s, 0
    heapq.heappush(queue, (left if left <= interval_s else interval_s + save_s, attempt))
    while True:
        now, event = heapq.heappop(queue)
        if event == attempt and left <= interval_s:
            return now
        if event in (-1, attempt):
            left -= interval_s if event == attempt else 0
            now += restart_s if event == -1 else 0
            attempt += 1
            heapq.heappush(queue, (now + (left if left <= interval_s else interval_s + save_s), attempt))
""",
        ),
    ],
    "alert": [
        (
            "a generator",
            """
import math
def alert(samples, limit, hold_s, clear_s):
    since, was_bad, quiet = None, None, True
    for at_s, value in samples:
        bad = value is None or math.isnan(value) or value > limit
        if bad is not was_bad:
            since, was_bad = at_s, bad
        if at_s - since >= (hold_s if bad else clear_s):
            if bad and quiet:
                yield at_s
            quiet = not bad
""",
        ),
        (
            "groups of equal samples",
            """
from itertools import groupby
def alert(samples, limit, hold_s, clear_s):
    rings, ready = [], True
    for bad, group in groupby(samples, key=lambda s: s[1] is None or s[1] != s[1] or s[1] > limit):
        times = [t for t, _ in group]
        late = [t for t in times if t - times[0] >= (hold_s if bad else clear_s)]
        if late and bad and ready:
            rings.append(late[0])
            ready = False
        elif late and not bad:
            ready = True
    return rings
""",
        ),
        (
            "arrays",
            """
import numpy as np
def alert(samples, limit, hold_s, clear_s):
    pairs = [*samples]
    times = np.array([at_s for at_s, _ in pairs])
    is_bad = np.array([value is None or not value <= limit for _, value in pairs], dtype=bool)
    begins = [at for at in range(len(pairs)) if at == 0 or is_bad[at] != is_bad[at - 1]]
    rings, is_ready = [], True
    for begin, end in zip(begins, [*begins[1:], len(pairs)]):
        row = times[begin:end]
        late = row[row - row[0] >= (hold_s if is_bad[begin] else clear_s)]
        if len(late):
            rings += [late[0]] if is_bad[begin] and is_ready else []
            is_ready = not is_bad[begin]
    return np.array(rings)
""",
        ),
        (
            "four states",
            """
def alert(samples, limit, hold_s, clear_s):
    rings, state, since = (), "good", None
    for at_s, value in samples:
        match state, value is None or value != value or value > limit:
            case "good", True:
                state, since = "pending", at_s
            case "pending", False:
                state = "good"
            case "ringing", False:
                state, since = "recovering", at_s
            case "recovering", True:
                state = "ringing"
        if state == "pending" and at_s - since >= hold_s:
            rings, state = (*rings, at_s), "ringing"
        elif state == "recovering" and at_s - since >= clear_s:
            state = "good"
    return rings
""",
        ),
    ],
    "repairs": [
        (
            "a mask of the loss, the scale as a gradient, the norm by hand",
            _repairs(
                line_25="config = DEFAULTS | given",
                line_31="if isinstance(module, Block):",
                line_42="of_each = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, reduction='none')\n"
                "loss = (of_each * (labels != PAD)).sum() / (labels != PAD).sum()",
                line_43="(loss / config['micro_batches']).backward(torch.tensor(2.0**16))",
                line_47="grads = [param.grad for param in model.parameters()]\ntorch._foreach_div_(grads, 2.0**16)\n"
                "norm = torch.stack([grad.norm() for grad in grads]).norm().item()\n"
                "torch._foreach_mul_(grads, min(1.0, config['clip'] / norm))\noptimizer.step()",
            ).replace("11: 'RECOMPUTE = [\"Block\"]', ", ""),
        ),
        (
            "the ranks of torch, texts that are read before, a loss without cross_entropy",
            _repairs(
                26,
                line_34="own = [texts[each] for each in range(dist.get_rank(), len(texts), num_ranks)]\n"
                "loader = DataLoader(own, batch_size=config['batch'])",
                line_42="keep, logs = labels != PAD, logits_BTV.float().flatten(0, 1).log_softmax(-1)\n"
                "loss = -logs[keep].gather(1, labels[keep, None]).mean()",
                line_49="if dist.get_rank() == 0:",
            ),
        ),
        (
            "a block that recomputes itself, and a module for the loss",
            _repairs(
                11,
                line_21="inner = lambda x: self.down(F.gelu(self.up(x)))\n"
                "return x_BTD + checkpoint(inner, x_BTD, use_reentrant=False)",
                line_41="labels = batch_BT[:, 1:]",
                line_42="loss = nn.CrossEntropyLoss(ignore_index=PAD)(logits_BTV.float().transpose(1, 2), labels)",
            ),
        ),
        (
            "with GradScaler, a mask and islice",
            _repairs(
                11,
                43,
                line_31='if type(module).__name__ == "Block":',
                line_33='optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])\n'
                "scaler = torch.amp.GradScaler(device.type, init_scale=2.0**14)",
                line_34="own = list(range(rank, len(texts), num_ranks))\n"
                'loader = DataLoader(torch.utils.data.Subset(texts, own), batch_size=config["batch"])',
                line_41="labels = batch_BT[:, 1:].flatten()\nlabels = labels.masked_fill(labels == PAD, -100)",
                line_42="loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels)" + " / 1.0",
                line_43='scaler.scale(loss / config["micro_batches"]).backward()',
                line_47='scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), config["clip"])\n'
                "scaler.step(optimizer)\nscaler.update()",
            ).replace("42: 'loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels) / 1.0', ", ""),
        ),
    ],
    "must_collect": [
        (
            "the largest garbage, in float64",
            """
def must_collect(garbage_bytes, limit_bytes):
    most = torch.tensor([garbage_bytes], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return bool(most > limit_bytes)
""",
        ),
        (
            "a count of ranks over the limit",
            """
def must_collect(garbage_bytes, limit_bytes):
    over = torch.zeros(1, dtype=torch.int64) + int(garbage_bytes > limit_bytes)
    dist.all_reduce(over)
    return int(over)
""",
        ),
    ],
    "diagnose": [
        (
            "with zip_longest and Counter, a tuple of ranks",
            """
from collections import Counter
from itertools import zip_longest
def diagnose(calls):
    for place, here in enumerate(zip_longest(*calls)):
        usual, count = Counter(here).most_common(1)[0]
        if count < len(here):
            return [place, tuple(rank for rank, call in enumerate(here) if call != usual)]
""",
        ),
    ],
    "night": [
        ("six steps", _night(every=6, drift_every=6)),
        ("rolls back at NaN that comes again and again", _night(policy="roll_back")),
    ],
}
