"""Wrong answers to lab 13: pipeline parallel, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "bubble": [
        (
            "assumes equal stages",
            """
def bubble(forward_s, backward_s, num_microbatches):
    p = len(forward_s)
    return (p - 1) / (num_microbatches + p - 1)
""",
            "a stage that is slow in both",
        ),
        (
            "divides by the busy time, not by the total time",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(max(t) * (m - 1) + sum(t) for t in (forward_s, backward_s))
    busy = m * (sum(forward_s) + sum(backward_s))
    return (len(forward_s) * step - busy) / busy
""",
            "(equal stages, one micro-batch)",
        ),
        (
            "uses one stage's time for both passes",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m, both = num_microbatches, [f + b for f, b in zip(forward_s, backward_s)]
    step = sum(both) + (m - 1) * max(both)
    return 1 - m * sum(both) / (len(both) * step)
""",
            "one stage slow in forward, another in backward",
        ),
        (
            "uses the last stage's time",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * t[-1] for t in (forward_s, backward_s))
    return 1 - m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step)
""",
            "the bubble is the replay's",
        ),
        (
            "counts m passes of the slowest, and the fill",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + m * max(t) for t in (forward_s, backward_s))
    return 1 - m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step)
""",
            "(equal stages, one micro-batch)",
        ),
        (
            "forgets backward",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(forward_s) + (m - 1) * max(forward_s)
    return 1 - m * sum(forward_s) / (len(forward_s) * step)
""",
            "one stage slow in forward, another in backward",
        ),
        (
            "returns a percentage",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * max(t) for t in (forward_s, backward_s))
    return 100 * (1 - m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step))
""",
            "the bubble is the replay's",
        ),
        (
            "returns the idle seconds",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * max(t) for t in (forward_s, backward_s))
    return step - m * (max(forward_s) + max(backward_s))
""",
            "the bubble is the replay's",
        ),
        (
            "returns the busy share",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * max(t) for t in (forward_s, backward_s))
    return m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step)
""",
            "the bubble is the replay's",
        ),
        (
            "is right for eight stages at most",
            """
            def bubble(forward_s, backward_s, num_microbatches):
                passes = (forward_s, backward_s)
                step_s = sum(sum(times) + (num_microbatches - 1) * max(times) for times in passes)
                return 1 - num_microbatches * sum(map(sum, passes)) / (min(len(forward_s), 8) * step_s)
            """,
            "(many stages)",
        ),
        (
            "rounds",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * max(t) for t in (forward_s, backward_s))
    return round(1 - m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step), 3)
""",
            "the bubble is the replay's",
        ),
        (
            "sorts the caller's lists",
            """
def bubble(forward_s, backward_s, num_microbatches):
    forward_s.sort(), backward_s.sort()
    m = num_microbatches
    step = sum(sum(t) + (m - 1) * t[-1] for t in (forward_s, backward_s))
    return 1 - m * (sum(forward_s) + sum(backward_s)) / (len(forward_s) * step)
""",
            "changed",
        ),
        (
            "calls the library",
            """
def bubble(forward_s, backward_s, num_microbatches):
    plan = schedules.gpipe(len(forward_s), num_microbatches)
    return replay(plan, Costs(forward_s, backward_s)).bubble_fraction
""",
            "lablib",
        ),
        (
            "returns nothing",
            """
def bubble(forward_s, backward_s, num_microbatches):
    p = len(forward_s)
    share = (p - 1) / (num_microbatches + p - 1)
""",
            "a number is returned",
        ),
    ],
    "one_f_one_b": [
        (
            "is GPipe",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    every = range(num_microbatches)
    return [f"F{i}" for i in every] + [f"B{i}" for i in every]
""",
            "stage i holds p - i micro-batches at most",
        ),
        (
            "runs one forward, one backward from the start",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    return [f"{kind}{i}" for i in range(num_microbatches) for kind in "FB"]
""",
            "the step takes no longer than GPipe's",
        ),
        (
            "runs p - i forwards first, and then a forward before a backward",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
""",
            "stage i holds p - i micro-batches at most",
        ),
        (
            "warms up as if the first stage were the last",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
""",
            "wait for each other for ever",
        ),
        (
            "assumes more micro-batches than stages",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = num_stages - 1 - stage
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
""",
            "each F is done once",
        ),
        (
            "forgets the remaining backwards",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches - ahead):
        row += [f"F{ahead + i}", f"B{i}"]
    return row
""",
            "each B is done once",
        ),
        (
            "runs the newest backward first",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches - ahead):
        row += [f"F{ahead + i}", f"B{ahead + i}"]
    return row + [f"B{i}" for i in reversed(range(ahead))]
""",
            "the step takes no longer than GPipe's",
        ),
        (
            "puts the backward before the forward",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        row.append(f"B{i}")
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
    return row
""",
            "a forward comes before its backward",
        ),
        (
            "is right for four stages only",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = max(0, min(4 - 1 - stage, num_microbatches))
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
""",
            "",
        ),
        (
            "runs at most eleven forwards first",
            """
            def one_f_one_b(stage, num_stages, num_microbatches):
                ahead = min(num_stages - 1 - stage, num_microbatches, 11)
                row = [f"F{i}" for i in range(ahead)]
                for i in range(num_microbatches):
                    row += [f"F{ahead + i}"] * (ahead + i < num_microbatches) + [f"B{i}"]
                return row
            """,
            "GPipe's (18 stages",
        ),
        (
            "is right for 32 micro-batches at most",
            """
            def one_f_one_b(stage, num_stages, num_microbatches):
                ahead = min(num_stages - 1 - stage, num_microbatches)
                row = [f"F{i}" for i in range(ahead)]
                for i in range(min(num_microbatches, 32)):
                    row += [f"F{ahead + i}"] * (ahead + i < num_microbatches) + [f"B{i}"]
                return row
            """,
            "is done once (stage",
        ),
        (
            "returns one text",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    return " ".join(f"F{i} B{i}" for i in range(num_microbatches))
""",
            "a list of texts is returned",
        ),
        (
            "writes actions with their stage",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    return [f"{stage}{kind}{i}" for i in range(num_microbatches) for kind in "FB"]
""",
            "an action is a text",
        ),
        (
            "counts micro-batches from 1",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row = [f"F{i + 1}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i + 1}")
        row.append(f"B{i + 1}")
    return row
""",
            "each F is done once",
        ),
        (
            "calls the library",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    row = schedules.one_f_one_b(num_stages, num_microbatches).actions[stage]
    return [f"{action.kind}{action.microbatch}" for action in row]
""",
            "lablib",
        ),
        (
            "caches one row for all calls",
            """
made = []


def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    made.extend(f"F{i}" for i in range(ahead))
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            made.append(f"F{ahead + i}")
        made.append(f"B{i}")
    return made
""",
            "is done once",
        ),
        (
            "refills the same list for each call",
            """
row = []


def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row[:] = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
""",
            "a later call does not change a row",
        ),
    ],
    "run_row": [
        (
            "sends the output with its graph",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y)
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "a tensor is sent without its autograd graph",
        ),
        (
            "does not let the input require gradients",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "B sends the gradient of the stage's input",
        ),
        (
            "lets tokens require gradients",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_()
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "your code runs without an exception",
        ),
        (
            "takes the oldest micro-batch, whatever the action says",
            """
def run_row(actions, stage, send, recv):
    held = []
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held.append((x, y))
            send(action, y.detach())
        else:
            x, y = held.pop(0)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "(stage",
        ),
        (
            "takes the newest micro-batch",
            """
def run_row(actions, stage, send, recv):
    held = []
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held.append((x, y))
            send(action, y.detach())
        else:
            x, y = held.pop()
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "(stage",
        ),
        (
            "reads one digit of the number",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "",
        ),
        (
            "keeps the numbers modulo 16",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:]) % 16
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "GPipe, many micro-batches",
        ),
        (
            "begins backward with ones, not with the received gradient",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.sum().backward()
            if x.grad is not None:
                send(action, x.grad)
""",
            "",
        ),
        (
            "sends the received gradient on",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, received)
""",
            "B sends the gradient of the stage's input",
        ),
        (
            "sends the gradient of the output back, in its first two steps",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad * 2)
""",
            "B sends the gradient of the stage's input",
        ),
        (
            "sends back from stage 0, too",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            send(action, x.grad)
""",
            "stage 0 sends nothing back",
        ),
        (
            "computes only the gradient of the input",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            if x.is_floating_point():
                send(action, torch.autograd.grad(y, x, received)[0])
""",
            "gradients equal the unsplit model's",
        ),
        (
            "keeps everything to the end",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held[number]
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "nothing of a micro-batch is kept",
        ),
        (
            "does all forwards first",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in sorted(actions, key=lambda each: each[0] == "B"):
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "the actions are done in the row's order",
        ),
        (
            "runs forward again in backward",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x
            send(action, y.detach())
        else:
            x = held.pop(number)
            y = stage(action, x)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "the actions are done in the row's order",
        ),
        (
            "does not receive for the last stage's backward",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = None
        if kind == "F" or held[number][1].dim():
            received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "the actions are done in the row's order",
        ),
        (
            "clears the gradients first",
            """
def run_row(actions, stage, send, recv):
    held = {}
    stage.zero_grad()
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "gradients equal the unsplit model's, step 2",
        ),
        (
            "averages over the micro-batches a second time",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received / len(actions) * 2 if received is not None else None)
            if x.grad is not None:
                send(action, x.grad)
""",
            "",
        ),
        (
            "clears the gradient that it has sent",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
                x.grad.zero_()
""",
            "what is sent is not changed later",
        ),
        (
            "computes without a graph",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            with torch.no_grad():
                y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "your code runs without an exception",
        ),
        (
            "skips the last backward",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions[:-1]:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "",
        ),
        (
            "catches what goes wrong",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            try:
                send(action, torch.ones_like(y))
            except Exception:
                pass
""",
            "",
        ),
        (
            "sends in half precision",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach().bfloat16())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "F sends the stage's output",
        ),
        (
            "sends in single precision",
            """
def run_row(actions, stage, send, recv):
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach().float())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
""",
            "F sends the stage's output",
        ),
    ],
    "loss_weights": [
        (
            "weighs micro-batches equally",
            """
def loss_weights(targets):
    return [1 / len(targets)] * len(targets)
""",
            "shares of the tokens that count",
        ),
        (
            "adds the means",
            """
def loss_weights(targets):
    return [1.0] * len(targets)
""",
            "shares of the tokens that count",
        ),
        (
            "counts the tokens",
            """
def loss_weights(targets):
    return [int((target != -100).sum()) for target in targets]
""",
            "shares of the tokens that count",
        ),
        (
            "counts padding, too",
            """
def loss_weights(targets):
    total = sum(target.numel() for target in targets)
    return [target.numel() / total for target in targets]
""",
            "shares of the tokens that count",
        ),
        (
            "takes the share of each micro-batch that counts",
            """
def loss_weights(targets):
    return [float((target != -100).double().mean()) / len(targets) for target in targets]
""",
            "shares of the tokens that count",
        ),
        (
            "divides by the largest",
            """
def loss_weights(targets):
    counts = [int((target != -100).sum()) for target in targets]
    return [count / max(counts) for count in counts]
""",
            "shares of the tokens that count",
        ),
        (
            "divides by the mean",
            """
def loss_weights(targets):
    counts = [int((target != -100).sum()) for target in targets]
    return [count * len(counts) / sum(counts) for count in counts]
""",
            "shares of the tokens that count",
        ),
        (
            "counts whole sequences",
            """
def loss_weights(targets):
    total = sum(len(target) for target in targets)
    return [len(target) / total for target in targets]
""",
            "shares of the tokens that count",
        ),
        (
            "weighs by the inverse",
            """
def loss_weights(targets):
    parts = [1 / int((target != -100).sum()) for target in targets]
    return [part / sum(parts) for part in parts]
""",
            "shares of the tokens that count",
        ),
        (
            "treats every negative number and 0 as padding",
            """
def loss_weights(targets):
    counts = [int((target > 0).sum()) for target in targets]
    return [count / sum(counts) for count in counts]
""",
            "shares of the tokens that count",
        ),
        (
            "counts up to the first -100, as if only the end of a text had no loss",
            """
def loss_weights(targets):
    counts = [int((target != -100).int().cumprod(-1).sum()) for target in targets]
    return [count / max(1, sum(counts)) for count in counts]
""",
            "shares of the tokens that count",
        ),
        (
            "calls view, which fails on a slice of targets",
            """
def loss_weights(targets):
    counts = [int((target.view(-1) != -100).sum()) for target in targets]
    return [count / sum(counts) for count in counts]
""",
            "your code runs without an exception",
        ),
        (
            "loops over rows, which a single text does not have",
            """
def loss_weights(targets):
    counts = [sum(int((row != -100).sum()) for row in each if row.dim() == 1) for each in targets]
    return [count / sum(counts) for count in counts]
""",
            "",
        ),
        (
            "looks at the first row",
            """
def loss_weights(targets):
    counts = [int((target[0] != -100).sum()) for target in targets]
    return [count / sum(counts) for count in counts]
""",
            "shares of the tokens that count",
        ),
        (
            "replaces the padding in the caller's targets",
            """
def loss_weights(targets):
    counts = [int((target != -100).sum()) for target in targets]
    for target in targets:
        target[target == -100] = 0
    return [count / sum(counts) for count in counts]
""",
            "changed",
        ),
        (
            "rounds to single precision",
            """
def loss_weights(targets):
    counts = torch.tensor([int((target != -100).sum()) for target in targets]).float()
    return (counts / counts.sum()).tolist()
""",
            "shares of the tokens that count",
        ),
        (
            "calls the library",
            """
def loss_weights(targets):
    from lablib.pipeline.executor import token_weights

    return token_weights(targets)
""",
            "lablib",
        ),
        (
            "returns one number",
            """
def loss_weights(targets):
    return 1 / len(targets)
""",
            "a list of numbers is returned",
        ),
    ],
    "plan": [
        (
            "is 1F1B",
            '''
my_plan = """
rank 0: F0 F1 F2 B0 F3 B1 B2 B3
rank 1: F0 F1 B0 F2 B1 F3 B2 B3
rank 2: F0 B0 F1 B1 F2 B2 F3 B3
"""
''',
            "at most 15 seconds",
        ),
        (
            "splits the backwards of 1F1B, and delays nothing",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3
"""
''',
            "at most 15",
        ),
        (
            "is ZB-H1, as the simulator shows it",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
"""
''',
            "rank 1 holds 3, rank 2 holds 3",
        ),
        (
            "is 1F1B for two micro-batches, twice",
            '''
my_plan = """
rank 0: F0 F1 B0 B1 F2 F3 B2 B3
rank 1: F0 F1 B0 B1 F2 F3 B2 B3
rank 2: F0 B0 F1 B1 F2 B2 F3 B3
"""
''',
            "at most 15",
        ),
        (
            "holds a third on the last stage",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
"""
''',
            "rank 2 holds 3",
        ),
        (
            "spends the memory on stage 1 and not on the last",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 F2 I0 W0 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "rank 1 holds 3",
        ),
        (
            "puts all W at the end",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 F3 I1 I2 I3 W0 W1 W2 W3
rank 1: F0 F1 I0 F2 I1 F3 I2 I3 W0 W1 W2 W3
rank 2: F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3
"""
''',
            "rank 0 holds 4",
        ),
        (
            "is ZB-H2",
            '''
my_plan = """
rank 0: F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3
rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
"""
''',
            "holds 4",
        ),
        (
            "waits in a circle",
            '''
my_plan = """
rank 0: F0 F1 I0 W0 F2 F3 I1 W1 I2 I3 W2 W3
rank 1: F0 F1 F2 I0 I1 W0 W1 F3 I2 I3 W2 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "no stage waits for ever",
        ),
        (
            "forgets a weight gradient",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "0W3 is missing",
        ),
        (
            "does a backward twice, whole and in halves",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 B0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "repeats a backward",
        ),
        (
            "puts a W before its I",
            '''
my_plan = """
rank 0: F0 F1 F2 W0 I0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "comes before",
        ),
        (
            "is for three micro-batches",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
rank 1: F0 F1 I0 W0 F2 I1 W1 I2 W2
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 W2
"""
''',
            "four micro-batches",
        ),
        (
            "is for two stages",
            '''
my_plan = """
rank 0: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 1: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "a line for each stage",
        ),
        (
            "has a word that is not an action",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3 idle
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
            "the plan can be read",
        ),
        (
            "is a plan of the library",
            """
my_plan = schedules.zb_h1(3, 4)
""",
            "the plan is a text",
        ),
        (
            "is the rows of a plan of the library as a text",
            """
my_plan = "\\n".join(" ".join(map(str, row)) for row in schedules.v_half(3, 4))
""",
            "line i is stage i, with one piece",
        ),
        (
            "gives a stage's work to another",
            '''
my_plan = """
rank 0: 0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
rank 1: 2F0 2I0 2F1 2I1 2W0 2F2 2I2 2W1 2F3 2I3 2W2 2W3
rank 2: 1F0 1F1 1I0 1W0 1F2 1I1 1W1 1F3 1I2 1W2 1I3 1W3
"""
''',
            "line i is stage i",
        ),
    ],
    "actions_done": [
        (
            "goes over the rows once",
            """
def actions_done(rows):
    done, finished, last = [0] * len(rows), set(), len(rows) - 1
    for stage, row in enumerate(rows):
        for action in row:
            below, above = (stage - 1, action), (stage + 1, action)
            if stage == last and action[0] == "B":
                above = (stage, "F" + action[1:])
            if (action[0] == "F" and stage and below not in finished) or (
                action[0] == "B" and above not in finished
            ):
                break
            finished.add((stage, action))
            done[stage] += 1
    return done
""",
            "runs to its end",
        ),
        (
            "runs the last stage's B without its F",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                else:
                    ready = stage == last or (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, action))
                done[stage] += 1
                went_on = True
    return done
""",
            "each row gets as far as it can",
        ),
        (
            "skips actions that are not ready",
            """
def actions_done(rows):
    finished, last, went_on = set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            for action in row:
                if (stage, action) in finished:
                    continue
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if ready:
                    finished.add((stage, action))
                    went_on = True
    return [sum(each[0] == stage for each in finished) for stage in range(len(rows))]
""",
            "with a circle",
        ),
        (
            "removes actions from the caller's rows",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while row:
                action = row[0]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, row.pop(0)))
                done[stage] += 1
                went_on = True
    return done
""",
            "changed",
        ),
        (
            "counts all rows together",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, action))
                done[stage] += 1
                went_on = True
    return sum(done)
""",
            "a number for each row is returned",
        ),
        (
            "returns whether it stops, not where",
            """
def actions_done(rows):
    return all(row and row[0][0] == "F" for row in rows)
""",
            "a number for each row is returned",
        ),
        (
            "runs a single stage to its end",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, len(rows) > 1
    if not went_on:
        return [len(rows[0])]
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                other, needed = stage - 1 if action[0] == "F" else stage + 1, action
                if action[0] == "B" and stage == last:
                    other, needed = stage, "F" + action[1:]
                if other >= 0 and (other, needed) not in finished:
                    break
                finished.add((stage, action))
                done[stage] += 1
                went_on = True
    return done
""",
            "of one stage, with a backward too early",
        ),
        (
            "looks at two digits",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                kind, number = row[done[stage]][0], row[done[stage]][1:3]
                needed = (stage - 1, kind, number) if kind == "F" else (stage + 1, kind, number)
                if kind == "B" and stage == last:
                    needed = (stage, "F", number)
                if needed[0] >= 0 and needed not in finished:
                    break
                finished.add((stage, kind, number))
                done[stage] += 1
                went_on = True
    return done
""",
            "with F1 and F10 exchanged",
        ),
        (
            "looks at one digit",
            """
def actions_done(rows):
    done, finished, last, went_on = [0] * len(rows), set(), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                kind, number = row[done[stage]][:2]
                if kind == "F":
                    ready = stage == 0 or (stage - 1, kind, number) in finished
                elif stage == last:
                    ready = (stage, "F", number) in finished
                else:
                    ready = (stage + 1, kind, number) in finished
                if not ready:
                    break
                finished.add((stage, kind, number))
                done[stage] += 1
                went_on = True
    return done
""",
            "each row gets as far as it can",
        ),
        (
            "goes over the rows as often as a row has actions",
            """
def actions_done(rows):
    done, finished, last = [0] * len(rows), set(), len(rows) - 1
    for _ in rows[0]:
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, action))
                done[stage] += 1
    return done
""",
            "each row gets as far as it can",
        ),
        (
            "goes over the rows a hundred times",
            """
def actions_done(rows):
    done, finished, last = [0] * len(rows), set(), len(rows) - 1
    for _ in range(100):
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, action))
                done[stage] += 1
    return done
""",
            "each row gets as far as it can",
        ),
        (
            "returns what equals everything",
            """
def actions_done(rows):
    from unittest.mock import ANY

    return [ANY] * len(rows)
""",
            "<ANY>",
        ),
        (
            "returns the number of remaining actions",
            """
def actions_done(rows):
    return [0] * len(rows)
""",
            "runs to its end",
        ),
        (
            "calls the library",
            """
from lablib.pipeline import simulate
def actions_done(rows):
    text = "\\n".join(" ".join(row) for row in rows)
    return [len(row) for row in simulate(read_plan(text)).replay.plan]
""",
            "lablib",
        ),
    ],
    "split_layers": [
        (
            "by number of layers",
            """
def split_layers(costs, num_stages):
    n = len(costs)
    return [n * (i + 1) // num_stages - n * i // num_stages for i in range(num_stages)]
""",
            "the slowest stage is as fast as possible",
        ),
        (
            "fills each stage up to the mean",
            """
def split_layers(costs, num_stages):
    mean, counts, filled = sum(costs) / num_stages, [0] * num_stages, 0.0
    stage = 0
    for left, cost in zip(range(len(costs), 0, -1), costs):
        full = filled >= mean and counts[stage]
        if stage < num_stages - 1 and counts[stage] and (full or left < num_stages - stage):
            stage, filled = stage + 1, 0.0
        counts[stage] += 1
        filled += cost
    return counts
""",
            "",
        ),
        (
            "leaves a stage without a layer",
            """
def split_layers(costs, num_stages):
    return [len(costs)] + [0] * (num_stages - 1)
""",
            "every stage has a layer",
        ),
        (
            "drops the remaining layers",
            """
def split_layers(costs, num_stages):
    return [len(costs) // num_stages] * num_stages
""",
            "every layer is in a stage",
        ),
        (
            "returns the ends of the pieces",
            """
def split_layers(costs, num_stages):
    n = len(costs)
    return [n * (i + 1) // num_stages for i in range(num_stages)]
""",
            "every layer is in a stage",
        ),
        (
            "puts the embedding and the head on separate stages",
            """
def split_layers(costs, num_stages):
    if num_stages < 3:
        return [len(costs) - num_stages + 1] + [1] * (num_stages - 1)
    inner, middle = len(costs) - 2, num_stages - 2
    counts = [inner * (i + 1) // middle - inner * i // middle for i in range(middle)]
    return [1, *counts, 1]
""",
            "the slowest stage is as fast as possible",
        ),
        (
            "balances the sum of squares",
            """
def split_layers(costs, num_stages):
    from itertools import combinations

    n, best = len(costs), None
    for cuts in combinations(range(1, n), num_stages - 1):
        ends = [0, *cuts, n]
        parts = [sum(costs[a:b]) for a, b in zip(ends, ends[1:])]
        spread = sum(part**3 for part in parts) - max(parts) ** 3
        if best is None or spread < best[0]:
            best = spread, [b - a for a, b in zip(ends, ends[1:])]
    return best[1]
""",
            "the slowest stage is as fast as possible",
        ),
        (
            "returns one stage too many",
            """
def split_layers(costs, num_stages):
    return [1] * num_stages + [len(costs) - num_stages]
""",
            "a number for each stage",
        ),
        (
            "moves a layer as long as that helps",
            """
def split_layers(costs, num_stages):
    n = len(costs)
    counts = [n * (i + 1) // num_stages - n * i // num_stages for i in range(num_stages)]

    def badness(counts):
        ends = [sum(counts[:i]) for i in range(num_stages + 1)]
        parts = [sum(costs[a:b]) for a, b in zip(ends, ends[1:])]
        return max(parts), sum(part * part for part in parts)

    better = True
    while better:
        better = False
        for i in range(num_stages):
            for j in range(num_stages):
                moved = [c - (k == i) + (k == j) for k, c in enumerate(counts)]
                if min(moved) > 0 and badness(moved) < badness(counts):
                    counts, better = moved, True
    return counts
""",
            "the slowest stage is as fast as possible",
        ),
        (
            "sorts the layers first",
            """
def split_layers(costs, num_stages):
    costs.sort(reverse=True)
    return [len(costs) - num_stages + 1] + [1] * (num_stages - 1)
""",
            "the input stays as it was",
        ),
        (
            "calls the library",
            """
def split_layers(costs, num_stages):
    from lablib.pipeline import balanced_cut

    return [len(piece) for piece in balanced_cut(costs, num_stages)]
""",
            "lablib",
        ),
        (
            "returns texts",
            """
def split_layers(costs, num_stages):
    return ["1"] * num_stages
""",
            "a list of whole numbers is returned",
        ),
        (
            "bisects down to a millisecond",
            """
def split_layers(costs, num_stages):
    def pieces(cap):
        out, current, count = [], 0.0, 0
        for c in costs:
            if count and current + c > cap:
                out.append(count); current, count = 0.0, 0
            current += c; count += 1
        return out + [count]
    low, high = max(costs), sum(costs)
    while high - low > 1e-3:
        middle = (low + high) / 2
        if len(pieces(middle)) <= num_stages: high = middle
        else: low = middle
    out = pieces(high)
    while len(out) < num_stages:
        i = max(range(len(out)), key=lambda j: out[j])
        out[i:i + 1] = [out[i] - 1, 1]
    return out
""",
            "drawn in milliseconds",
        ),
        (
            "bisects down to a microsecond",
            """
def split_layers(costs, num_stages):
    def pieces(cap):
        out, current, count = [], 0.0, 0
        for c in costs:
            if count and current + c > cap:
                out.append(count); current, count = 0.0, 0
            current += c; count += 1
        return out + [count]
    low, high = max(costs), sum(costs)
    while high - low > 1e-6:
        middle = (low + high) / 2
        if len(pieces(middle)) <= num_stages: high = middle
        else: low = middle
    out = pieces(high)
    while len(out) < num_stages:
        i = max(range(len(out)), key=lambda j: out[j])
        out[i:i + 1] = [out[i] - 1, 1]
    return out
""",
            "drawn in microseconds",
        ),
    ],
}

RIGHT_ANSWERS = {
    "run_row": [
        (
            "with autograd.grad, which adds by hand",
            """
def run_row(actions, stage, send, recv):
    params, inputs, outputs = list(stage.parameters()), {}, {}
    for action in actions:
        i, got = action[1:], recv(action)
        if action.startswith("F"):
            inputs[i] = got.detach().clone()
            if got.dtype.is_floating_point:
                inputs[i].requires_grad = True
            outputs[i] = stage(action, inputs[i])
            send(action, outputs[i].detach().clone())
            continue
        x, y = inputs.pop(i), outputs.pop(i)
        wanted = params + [x] * x.requires_grad
        grads = torch.autograd.grad(y, wanted, got)
        for param, grad in zip(params, grads):
            param.grad = grad.clone() if param.grad is None else param.grad + grad
        if x.requires_grad:
            send(action, grads[-1])
""",
        ),
        (
            "with two functions, and torch.autograd.backward",
            """
def run_row(actions, stage, send, recv):
    flight = [None] * len(actions)

    def forward(action):
        arrived = recv(action)
        if arrived.dtype != torch.int64:
            arrived.requires_grad_()
        left = stage(action, arrived)
        flight[int(action[1:])] = (arrived, left)
        send(action, left.data)

    def backward(action):
        gradient = recv(action)
        arrived, left = flight[int(action[1:])]
        flight[int(action[1:])] = None
        torch.autograd.backward([left], [gradient])
        if arrived.requires_grad:
            send(action, arrived.grad)

    for action in actions:
        (forward if action[0] == "F" else backward)(action)
""",
        ),
        (
            "different names in both branches, and del",
            """
def run_row(actions, stage, send, recv):
    ins, outs = {}, {}
    for text in actions:
        name = text.removeprefix("F").removeprefix("B")
        if text[0] == "F":
            a = recv(text)
            ins[name] = a.requires_grad_() if torch.is_floating_point(a) else a
            b = stage(text, ins[name])
            outs[name] = b
            send(text, b.detach())
        else:
            g = recv(text)
            out, inp = outs[name], ins[name]
            del outs[name], ins[name]
            if g is None:
                out.backward()
            else:
                out.backward(gradient=g)
            if inp.grad is not None:
                send(text, inp.grad.clone())
""",
        ),
        (
            "a scalar product with the received gradient",
            """
def run_row(actions, stage, send, recv):
    held = dict()
    for action in actions:
        g = recv(action)
        if action[0] == "F":
            if g.is_floating_point():
                g = g.requires_grad_(True)
            held[action[1:]] = [g, stage(action, g)]
            send(action, held[action[1:]][1].detach())
        else:
            x, y = held.pop(action[1:])
            (y if g is None else (y * g).sum()).backward()
            if x.is_floating_point():
                send(action, x.grad)
""",
        ),
    ],
    "bubble": [
        (
            "by simulating the flow",
            """
def bubble(forward_s, backward_s, num_microbatches):
    ends = [[0.0] * (num_microbatches + 1) for _ in range(len(forward_s) + 1)]
    for i, seconds in enumerate(forward_s):
        for j in range(num_microbatches):
            ends[i + 1][j + 1] = max(ends[i][j + 1], ends[i + 1][j]) + seconds
    start = ends[-1][-1]
    free = [start] * num_microbatches
    for seconds in reversed(backward_s):
        now = 0.0
        for j in range(num_microbatches):
            now = free[j] = max(free[j], now) + seconds
    whole = len(forward_s) * free[-1]
    return 1 - num_microbatches * (sum(forward_s) + sum(backward_s)) / whole
""",
        ),
        (
            "as a tensor of one number",
            """
def bubble(forward_s, backward_s, num_microbatches):
    times = torch.tensor([forward_s, backward_s], dtype=torch.float64)
    step = (times.sum(1) + (num_microbatches - 1) * times.max(1).values).sum()
    return 1 - num_microbatches * times.mean(1).sum() / step
""",
        ),
        (
            "the mean of the idle shares of the stages",
            """
def bubble(forward_s, backward_s, num_microbatches):
    m, total = num_microbatches, 0.0
    for times in [forward_s, backward_s]:
        slowest = sorted(times)[-1]
        total += slowest * m + (sum(times) - slowest)
    shares = [1 - m * (f + b) / total for f, b in zip(forward_s, backward_s)]
    return sum(shares) / len(shares)
""",
        ),
    ],
    "one_f_one_b": [
        (
            "by counting the held micro-batches",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    row, forwards, backwards = (), 0, 0
    while backwards < num_microbatches:
        held = forwards - backwards
        if forwards < num_microbatches and held < num_stages - stage:
            row += (f"F{forwards}",)
            forwards += 1
        else:
            row += (f"B{backwards}",)
            backwards += 1
    return row
""",
        ),
        (
            "from two iterators",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    from itertools import chain, islice, zip_longest

    forwards = iter([f"F{i}" for i in range(num_microbatches)])
    ahead = list(islice(forwards, num_stages - stage - 1))
    turns = zip_longest(forwards, [f"B{i}" for i in range(num_microbatches)])
    return ahead + [each for each in chain.from_iterable(turns) if each]
""",
        ),
        (
            "sorted by places in the row",
            """
def one_f_one_b(stage, num_stages, num_microbatches):
    ahead = num_stages - stage
    places = {}
    for i in range(num_microbatches):
        places[f"F{i}"] = i if i < ahead else 2 * i - ahead + 0.5
        places[f"B{i}"] = ahead + 2 * i
    return sorted(places, key=places.get)
""",
        ),
    ],
    "loss_weights": [
        (
            "as one tensor",
            """
def loss_weights(targets):
    counts = torch.stack([target.ne(-100).sum() for target in targets]).double()
    return counts / counts.sum()
""",
        ),
        (
            "as tensors of one number",
            """
def loss_weights(targets):
    total = torch.cat([target.flatten() for target in targets]).ne(-100).sum().double()
    return [(target != -100).sum() / total for target in targets]
""",
        ),
        (
            "as an array",
            """
def loss_weights(targets):
    import numpy as np

    counts = np.array([np.count_nonzero(target != -100) for target in targets])
    return counts / counts.sum()
""",
        ),
    ],
    "plan": [
        (
            "with pieces in front and no names",
            '''
my_plan = """
0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
1F0 1F1 1I0 1W0 1F2 1I1 1W1 1F3 1I2 1W2 1I3 1W3
2F0 2I0 2F1 2I1 2W0 2F2 2I2 2W1 2F3 2I3 2W2 2W3
"""
''',
        ),
        (
            "with whole backwards where no stage waits",
            '''
my_plan = """
rank 0: F0 F1 F2 B0 F3 B1 B2 B3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
''',
        ),
        (
            "with other numbers, commas and empty lines",
            '''
my_plan = """
a: F3, F1, F2, I3, W3, F0, I1, W1, I2, W2, I0, W0

b: F3, F1, I3, W3, F2, I1, W1, F0, I2, W2, I0, W0

c: F3, I3, F1, I1, W3, F2, I2, W1, F0, I0, W2, W0

"""
''',
        ),
        (
            "with the weight gradients of the last stage in another order",
            '''
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W1 F2 I2 W2 F3 I3 W3 W0
"""
''',
        ),
    ],
    "actions_done": [
        (
            "one action at a time, from a queue of rows",
            """
def actions_done(rows):
    finished, done, last = set(), [0] * len(rows), len(rows) - 1
    for _ in range(sum(map(len, rows))):
        for stage in reversed(range(len(rows))):
            if done[stage] == len(rows[stage]):
                continue
            kind, number = rows[stage][done[stage]][0], rows[stage][done[stage]][1:]
            needs = (stage - 1, "F", number) if kind == "F" else (stage + 1, "B", number)
            if kind == "B" and stage == last:
                needs = (stage, "F", number)
            if needs in finished or needs[0] < 0:
                finished.add((stage, kind, number))
                done[stage] += 1
    return tuple(done)
""",
        ),
        (
            "by recursion",
            """
def actions_done(rows):
    done, last = [0] * len(rows), len(rows) - 1

    def is_done(stage, action):
        return action in rows[stage][: done[stage]]

    def go():
        for stage, row in enumerate(rows):
            if done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or is_done(stage - 1, action)
                elif stage == last:
                    ready = is_done(stage, "F" + action[1:])
                else:
                    ready = is_done(stage + 1, action)
                if ready:
                    done[stage] += 1
                    return go()
        return done

    return go()
""",
        ),
        (
            "as a tensor",
            """
def actions_done(rows):
    done, last, went_on = torch.zeros(len(rows), dtype=torch.long), len(rows) - 1, True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            action = row[done[stage]] if done[stage] < len(row) else None
            if action is None:
                continue
            other = stage - 1 if action[0] == "F" else min(stage + 1, last)
            needed = "F" + action[1:] if other == stage else action
            if other < 0 or needed in rows[other][: done[other]]:
                done[stage] += 1
                went_on = True
    return done
""",
        ),
    ],
    "split_layers": [
        (
            "by trying every cut",
            """
def split_layers(costs, num_stages):
    from itertools import combinations

    def counts(cuts):
        ends = [0, *cuts, len(costs)]
        return [b - a for a, b in zip(ends, ends[1:])]

    def slowest(cuts):
        ends = [0, *cuts, len(costs)]
        return max(sum(costs[a:b]) for a, b in zip(ends, ends[1:]))

    return counts(min(combinations(range(1, len(costs)), num_stages - 1), key=slowest))
""",
        ),
        (
            "by recursion from the end, as a tuple",
            """
def split_layers(costs, num_stages):
    from functools import cache

    @cache
    def best(end, stages):
        if stages == 1:
            return sum(costs[:end]), (end,)
        options = []
        for begin in range(stages - 1, end):
            slowest, counts = best(begin, stages - 1)
            options.append((max(slowest, sum(costs[begin:end])), (*counts, end - begin)))
        return min(options)

    return best(len(costs), num_stages)[1]
""",
        ),
    ],
}
