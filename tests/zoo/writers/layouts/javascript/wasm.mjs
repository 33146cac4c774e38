// Writes the rows with parquet-wasm: `node wasm.mjs TABLES OUT`.
import { readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

const require = createRequire(import.meta.url)
const { Table, WriterPropertiesBuilder, writeParquet } = require('parquet-wasm')
const { tableFromIPC, tableToIPC } = require('apache-arrow')
const [, , tables, out] = process.argv
const stream = tableToIPC(tableFromIPC(readFileSync(join(tables, 'rows.arrow'))), 'stream')
writeFileSync(join(out, 'default.parquet'), writeParquet(Table.fromIPCStream(stream)))
const tuned = new WriterPropertiesBuilder().setDataPageSizeLimit(65536).setDictionaryPageSizeLimit(65536)
writeFileSync(join(out, 'tuned.parquet'), writeParquet(Table.fromIPCStream(stream), tuned.build()))
const found = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules/parquet-wasm/package.json')))
console.log(`writer parquet-wasm ${found.version}`)
