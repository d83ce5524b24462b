"""The optimiser: Muon for matrices, AdamW for the embedding and the norms.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces
the momentum of each matrix by the nearest semi-orthogonal matrix, found by a
few Newton-Schulz steps. It needs far fewer tokens than AdamW here.
"""

import torch

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix, steps=5):
  """Returns an approximation of U V^T of the decomposition U S V^T."""
  a, b, c = _NEWTON_SCHULZ
  x = matrix / (matrix.norm() + 1e-7)
  tall = x.shape[0] > x.shape[1]
  if tall:
    x = x.t()
  for _ in range(steps):
    gram = x @ x.t()
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.t() if tall else x


class Muon(torch.optim.Optimizer):
  """Steps of length `lr` times the root of the matrix's shape ratio."""

  def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
    super().__init__(params, dict(lr=lr, momentum=momentum,
                                  weight_decay=weight_decay))

  @torch.no_grad()
  def step(self):
    for group in self.param_groups:
      for p in group["params"]:
        state = self.state[p]
        if "momentum" not in state:
          state["momentum"] = torch.zeros_like(p)
        mean = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
        ahead = p.grad.lerp(mean, group["momentum"])
        ratio = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(orthogonalize(ahead), alpha=-group["lr"] * ratio)


class Optimizer:
  """Both optimisers with one learning rate factor over time."""

  def __init__(self, model, matrix_lr, other_lr):
    matrices, others = [], []
    for name, p in model.named_parameters():
      (matrices if p.dim() == 2 and "embd" not in name else others).append(p)
    self._parts = [torch.optim.AdamW(others, lr=other_lr, betas=(0.9, 0.98),
                                     weight_decay=0.01)]
    if matrix_lr > 0:
      self._parts.append(Muon(matrices, lr=matrix_lr))
    else:
      self._parts[0].add_param_group(dict(params=matrices))
    self._lrs = [[g["lr"] for g in part.param_groups] for part in self._parts]

  def step(self, factor):
    for part, lrs in zip(self._parts, self._lrs):
      for group, lr in zip(part.param_groups, lrs):
        group["lr"] = lr * factor
      part.step()
      part.zero_grad()

  def state(self):
    return [part.state_dict() for part in self._parts]

  def load_state(self, state):
    for part, saved in zip(self._parts, state):
      part.load_state_dict(saved)
