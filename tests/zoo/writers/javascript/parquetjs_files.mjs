// Writes Parquet files with parquetjs, or with a fork of it: `node parquetjs_files.mjs PACKAGE OUT`.
import { readFileSync, rmSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { flat, nested } from './data.mjs'

const [, , name, out] = process.argv
const { ParquetSchema, ParquetWriter } = createRequire(import.meta.url)(name)

const flatSchema = compression => ({
  id: { type: 'INT64', compression },
  shuffled: { type: 'INT32', compression },
  runs: { type: 'INT32', optional: true, compression },
  flag: { type: 'BOOLEAN', optional: true, compression },
  float: { type: 'FLOAT', optional: true, compression },
  double: { type: 'DOUBLE', optional: true, compression },
  category: { type: 'UTF8', optional: true, compression },
  word: { type: 'UTF8', compression },
  long: { type: 'UTF8', optional: true, compression },
  binary: { type: 'BYTE_ARRAY', compression },
  at: { type: 'TIMESTAMP_MILLIS', compression },
  empty: { type: 'INT32', optional: true, compression },
})
const nestedSchema = compression => ({
  id: { type: 'INT64', compression },
  numbers: { type: 'INT32', repeated: true, compression },
  words: { type: 'UTF8', repeated: true, compression },
  point: { fields: { name: { type: 'UTF8', optional: true, compression }, size: { type: 'INT32', compression } } },
  items: { repeated: true, fields: { name: { type: 'UTF8', compression }, size: { type: 'INT32', compression } } },
})

async function write(variant, schema, rows, options) {
  const writer = await ParquetWriter.openFile(new ParquetSchema(schema), join(out, `${variant}.parquet`), options)
  writer.setRowGroupSize(400)
  for (const row of rows) {
    const given = Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null && !Number.isNaN(value)))
    await writer.appendRow({ ...given, id: Number(row.id), ...(row.binary ? { binary: Buffer.from(row.binary) } : {}) })
  }
  await writer.close()
}

for (const [version, useDataPageV2] of [['v1', false], ['v2', true]]) {
  for (const compression of ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'BROTLI']) {
    for (const [table, schema, rows] of [['flat', flatSchema, flat], ['nested', nestedSchema, nested]]) {
      const variant = `${table}-${version}-${compression.toLowerCase()}`
      try {
        await write(variant, schema(compression), rows, { useDataPageV2, pageSize: 512 })
      } catch (error) {
        rmSync(join(out, `${variant}.parquet`), { force: true })
        console.log(`skipped ${variant}: ${String(error).split('\n')[0]}`)
      }
    }
  }
}
const found = JSON.parse(readFileSync(join(import.meta.dirname, 'node_modules', name, 'package.json')))
console.log(`writer ${name} ${found.version}`)
