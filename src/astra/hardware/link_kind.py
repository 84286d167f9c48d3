"""What joins GPUs, by the name of its kind; or by its speed, where the name is not known."""

from astra.hardware.units import bare

# A word in the name of a kind, and what it is: nvlink (switch or bridge), mesh (point to point
# among all) or pcie (through the host). Each has measured curves of its own.
CLASSES = {"nvlink": "nvlink", "xgmi": "mesh", "roce": "mesh", "mesh": "mesh", "pcie": "pcie"}


def link_class_of(kind: str) -> str | None:
    """nvlink, mesh or pcie; None where the kind is not known.

    >>> link_class_of("NVLink 4+NVSwitch"), link_class_of("RoCE on chip, 100GbE")
    ('nvlink', 'mesh')
    """
    return next((found for word, found in CLASSES.items() if word in kind.lower()), None)


def guessed_kind(
    said: str | None, bytes_per_s: float, peer_bytes_per_s: float, pcie_bytes_per_s: float
) -> tuple[str, str]:
    """The kind of a link whose kind was not said or is not known, and why, in words.

    >>> guessed_kind("HCCS", 196e9, 28e9, 31.5e9)[0], guessed_kind(None, 200e9, 200e9, 63e9)[0]
    ('HCCS (read as mesh)', 'NVLink')
    """
    kind, why = "PCIe", f"{bytes_per_s / 1e9:g} GB/s are no more than PCIe has"
    if bytes_per_s > pcie_bytes_per_s:
        kind, why = "NVLink", f"{bytes_per_s / 1e9:g} GB/s are more than PCIe has"
        if peer_bytes_per_s < bytes_per_s:
            kind, why = "mesh", f"{why}, {peer_bytes_per_s / 1e9:g} GB/s of them to one peer"
    names = "NVLink, xGMI, RoCE, mesh and PCIe are known"
    if said is None:
        return kind, f"link.kind: {kind}, since {why}; {names}"
    said = bare(said)
    return f"{said} (read as {kind})", f"link.kind: {said} is read as {kind}, since {why}; {names}"
