"""As pytorch/examples mnist_rnn: rows of a picture as steps of an LSTM, batch norm and dropout behind it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=8, hidden_size=24, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(24)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(24, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, input):
        input = input.reshape(-1, 8, 8)
        output, hidden = self.rnn(input)
        output = output[:, -1, :]
        output = self.dropout1(self.batchnorm(output))
        output = F.relu(self.fc1(output))
        return F.log_softmax(self.fc2(self.dropout2(output)), dim=1)


torch.manual_seed(1)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.get_default_dtype())[:, None]
labels = torch.tensor(digits.target)
train = torch.utils.data.TensorDataset(images[:900], labels[:900])
test = torch.utils.data.TensorDataset(images[900:1200], labels[900:1200])
model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
for epoch in range(1, 3):
    model.train()
    for batch_idx, (data, target) in enumerate(torch.utils.data.DataLoader(train, 64, shuffle=True)):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 5 == 0:
            print(f"Train Epoch: {epoch} {batch_idx} Loss: {loss.item():.6f}")
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for data, target in torch.utils.data.DataLoader(test, 100, shuffle=True):
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (
                output.argmax(1, keepdim=True).eq(target.view_as(output.argmax(1))[:, None]).sum().item()
            )
    print(f"Test set: Average loss: {test_loss / len(test):.4f}, Accuracy: {correct}/{len(test)}")
    scheduler.step()
