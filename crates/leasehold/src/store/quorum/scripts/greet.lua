-- What a client says first on each new connection: from this moment a node that forgot is counted as such.
--
-- KEYS: BORN
-- ARGV: 1 run_id
-- Reply: time age

return { NOW, age_ms() }
