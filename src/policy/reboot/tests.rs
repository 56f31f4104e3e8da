//! Reboots through the whole policy, on a node whose verdict is declared.
