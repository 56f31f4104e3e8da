//! The forms in which a kernel log comes as text: dmesg, journalctl, raw kmsg, bare lines.
