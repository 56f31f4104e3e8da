//! Mapped pages stay while free memory is ample: no other process needs it then.

use std::fs;

use super::{damon, enabled};
use crate::evict::{Bench, Reader, cached, until};

#[test]
fn mapped_pages_stay_cached_until_they_are_unmapped_while_memory_is_free() {
    if !enabled() {
        return;
    }
    // Pages that DAMON isolates for a moment cannot be evicted then.
    let _damon_paused = damon::pause();
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let Some(mut bench) = Bench::new() else { return };
    bench.floor_bytes = 0;
    let model = bench.file("model.safetensors", 256);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 192");
    let outcome = bench.evict(vec![engine.id()]).unwrap();
    assert!(outcome.starts_with("0 B evicted; goes on"), "{outcome}");
    assert!(
        outcome.contains("; 128.0 MiB that is mapped or may not have been read stays until"),
        "{outcome}"
    );
    engine.does("unmap");
    // If some of it came back meanwhile, the distance is wider.
    until("evicting most unmapped pages", || cached(&model, 0, 128) < 32);
    bench.ready();
}
