//! Records of `/dev/kmsg`.
