//! umawarden dmesg
