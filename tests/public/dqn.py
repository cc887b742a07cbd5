"""As the PyTorch tutorial on DQN: a replay memory, a target net moved softly, masks over the states that go on."""

import math
import random
from collections import deque, namedtuple
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
BATCH_SIZE, GAMMA, TAU = 16, 0.9, 0.05


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


class Walk:
    """Steps on a line between two ends."""

    def reset(self):
        self.place = random.uniform(-0.2, 0.2)
        return [self.place, self.place**2]

    def step(self, action):
        self.place += 0.1 if action == 1 else -0.1
        return [self.place, self.place**2], 1.0 if self.place > 0.5 else 0.0, abs(self.place) > 0.5


random.seed(42)
torch.manual_seed(42)
env, memory, steps_done = Walk(), ReplayMemory(500), 0
policy_net, target_net = DQN(2, 2), DQN(2, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)


def select_action(state):
    global steps_done
    eps_threshold = 0.1 + 0.8 * math.exp(-1.0 * steps_done / 30)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor(tuple(s is not None for s in batch.next_state), dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch, action_batch = torch.cat(batch.state), torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


durations = []
for i_episode in range(12):
    state = torch.tensor(env.reset(), dtype=torch.get_default_dtype()).unsqueeze(0)
    for t in count():
        action = select_action(state)
        observation, reward, terminated = env.step(action.item())
        reward = torch.tensor([reward])
        next_state = (
            None if terminated else torch.tensor(observation, dtype=torch.get_default_dtype()).unsqueeze(0)
        )
        memory.push(state, action, next_state, reward)
        state = next_state
        optimize_model()
        target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
        target_net.load_state_dict(target_state)
        if terminated or t > 20:
            durations.append(t + 1)
            break
print("durations", durations)
torch.save(policy_net.state_dict(), "policy.pt")
