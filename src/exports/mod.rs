//! What others may read: metrics, API, pages.
