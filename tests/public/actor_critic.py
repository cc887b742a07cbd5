"""As pytorch/examples reinforcement_learning actor_critic: one state at a time, actions kept on the model."""

from collections import namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

SavedAction = namedtuple("SavedAction", ["log_prob", "value"])


class Pole:
    """A pole on a cart, roughly."""

    def __init__(self):
        self.random = np.random.RandomState(543)

    def reset(self):
        self.state = self.random.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action):
        x, v, angle, speed = self.state
        force = 1.0 if action == 1 else -1.0
        self.state = np.array(
            [x + 0.02 * v, v + 0.2 * force, angle + 0.05 * speed, speed + 0.5 * np.sin(angle) - 0.3 * force]
        )
        return self.state, 1.0, bool(abs(self.state[2]) > 0.3 or abs(self.state[0]) > 2.4)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.action_head = nn.Linear(16, 2)
        self.value_head = nn.Linear(16, 1)
        self.saved_actions = []
        self.rewards = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


torch.manual_seed(543)
env, model = Pole(), Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
eps = np.finfo(np.float32).eps.item()


def select_action(state):
    state = torch.from_numpy(state).to(torch.get_default_dtype())
    probs, state_value = model(state)
    m = Categorical(probs)
    action = m.sample()
    model.saved_actions.append(SavedAction(m.log_prob(action), state_value))
    return action.item()


def finish_episode():
    R, returns, policy_losses, value_losses = 0, [], [], []
    for r in model.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns, dtype=torch.get_default_dtype())
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for (log_prob, value), R in zip(model.saved_actions, returns):
        advantage = R - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(F.smooth_l1_loss(value, R.view(1)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]


running_reward = 10
for i_episode in range(1, 21):
    state, ep_reward = env.reset(), 0
    for _ in range(1, 60):
        state, reward, done = env.step(select_action(state))
        model.rewards.append(reward)
        ep_reward += reward
        if done:
            break
    running_reward = 0.05 * ep_reward + 0.95 * running_reward
    finish_episode()
    if i_episode % 5 == 0:
        print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}")
