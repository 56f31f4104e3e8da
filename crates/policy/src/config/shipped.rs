//! The rule files inside the binary.

use super::mistake::SourceText;

/// Used where neither the configuration file nor a flag names rule files.
pub fn shipped_rules() -> Vec<SourceText> {
    vec![
        SourceText::new("shipped:memory.yaml", include_str!("../../../../rules/memory.yaml")),
        SourceText::new("shipped:kernel.yaml", include_str!("../../../../rules/kernel.yaml")),
        SourceText::new("shipped:guard.yaml", include_str!("../../../../rules/guard.yaml")),
        SourceText::new("shipped:engines.yaml", include_str!("../../../../rules/engines.yaml")),
        SourceText::new("shipped:cluster.yaml", include_str!("../../../../rules/cluster.yaml")),
        SourceText::new("shipped:leak.yaml", include_str!("../../../../rules/leak.yaml")),
    ]
}
