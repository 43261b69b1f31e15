from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def photograph(height: int, width: int, channels: int = 3, seed: int = 0) -> NDArray[np.uint8]:
    """Pixels with the spectrum of natural images, of shape (height, width, channels)."""
    chance = np.random.default_rng(seed)
    rows, columns = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    falling = np.maximum(np.hypot(rows, columns), 1 / max(height, width)) ** -1.4
    common = chance.normal(size=(height, width))
    planes = []
    for _ in range(channels):
        noise = 0.8 * common + 0.2 * chance.normal(size=(height, width))
        plane = np.fft.ifft2(np.fft.fft2(noise) * falling).real
        planes.append((plane - np.min(plane)) / np.ptp(plane))
    pixels: NDArray[np.uint8] = np.rint(255 * np.stack(planes, axis=-1)).astype(np.uint8)
    return pixels
