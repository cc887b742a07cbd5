"""As the PyTorch tutorial on sequence models: sentences of their own length, [T, 1, F], one at a time."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
training_data = [
    ("the dog ate the apple".split(), ["DET", "NN", "V", "DET", "NN"]),
    ("everybody read that book".split(), ["NN", "V", "DET", "NN"]),
]
word_to_ix, tag_to_ix = {}, {"DET": 0, "NN": 1, "V": 2}
for sentence, _ in training_data:
    for word in sentence:
        word_to_ix.setdefault(word, len(word_to_ix))


def prepare_sequence(seq, to_ix):
    return torch.tensor([to_ix[w] for w in seq], dtype=torch.long)


class LSTMTagger(nn.Module):
    def __init__(self, embedding_dim, hidden_dim, vocab_size, tagset_size):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim)
        self.hidden2tag = nn.Linear(hidden_dim, tagset_size)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        lstm_out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
        tag_space = self.hidden2tag(lstm_out.view(len(sentence), -1))
        return F.log_softmax(tag_space, dim=1)


model = LSTMTagger(6, 6, len(word_to_ix), len(tag_to_ix))
loss_function = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(15):
    for sentence, tags in training_data:
        model.zero_grad()
        tag_scores = model(prepare_sequence(sentence, word_to_ix))
        loss = loss_function(tag_scores, prepare_sequence(tags, tag_to_ix))
        loss.backward()
        optimizer.step()
    if epoch % 5 == 0:
        print(f"epoch {epoch} loss {loss.item():.6f}")
with torch.no_grad():
    print(model(prepare_sequence(training_data[0][0], word_to_ix)))
