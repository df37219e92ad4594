// Plays one scenario with KafkaJS' registry client and prints what it saw as JSON. Its package is found by NODE_PATH.
const { SchemaRegistry, SchemaType, COMPATIBILITY } = require('@kafkajs/confluent-schema-registry');

const USER = JSON.stringify({ type: 'record', name: 'User', namespace: 'shop', fields: [{ name: 'name', type: 'string' }] });
const AGED = JSON.stringify({
  type: 'record', name: 'User', namespace: 'shop',
  fields: [{ name: 'name', type: 'string' }, { name: 'age', type: ['null', 'int'], default: null }],
});
const OTHER = JSON.stringify({ type: 'record', name: 'User', namespace: 'shop', fields: [{ name: 'name', type: 'int' }] });
const PERSON = JSON.stringify({ type: 'object', properties: { name: { type: 'string' } }, required: ['name'] });

const failure = (promise) => promise.then(() => null, (error) => ({ name: error.name, message: error.message, status: error.status }));

const scenarios = {
  async avro(registry, subject, host) {
    const first = await registry.register({ type: SchemaType.AVRO, schema: USER }, { subject });
    const again = await registry.register({ type: SchemaType.AVRO, schema: USER }, { subject });
    const second = await registry.register({ type: SchemaType.AVRO, schema: AGED }, { subject });
    const data = await registry.encode(first.id, { name: 'Ann' });
    const fresh = new SchemaRegistry({ host });
    return {
      ids: [first.id === again.id, second.id > first.id],
      decoded: await fresh.decode(data),
      latest: (await fresh.getLatestSchemaId(subject)) === second.id,
      byText: (await fresh.getRegistryIdBySchema(subject, { type: SchemaType.AVRO, schema: USER })) === first.id,
      byVersion: (await fresh.getRegistryId(subject, 1)) === first.id,
    };
  },

  async compatibility(registry, subject) {
    await registry.register({ type: SchemaType.AVRO, schema: USER }, { subject, compatibility: COMPATIBILITY.FULL });
    return {
      incompatible: await failure(
        registry.register({ type: SchemaType.AVRO, schema: OTHER }, { subject, compatibility: COMPATIBILITY.FULL }),
      ),
      changed: await failure(
        registry.register({ type: SchemaType.AVRO, schema: AGED }, { subject, compatibility: COMPATIBILITY.NONE }),
      ),
    };
  },

  async json(registry, subject, host) {
    const { id } = await registry.register({ type: SchemaType.JSON, schema: PERSON }, { subject });
    const data = await registry.encode(id, { name: 'Ann' });
    return { decoded: await new SchemaRegistry({ host }).decode(data), invalid: await failure(registry.encode(id, { name: 1 })) };
  },

  async missing(registry, subject) {
    return {
      id: await failure(registry.getSchema(987654)),
      subject: await failure(registry.getLatestSchemaId(subject)),
    };
  },
};

const [name, host, subject] = process.argv.slice(2);
scenarios[name](new SchemaRegistry({ host }), subject, host).then(
  (result) => process.stdout.write(JSON.stringify(result) + '\n', () => process.exit(0)),
  (error) => process.stderr.write(`${error.stack}\n`, () => process.exit(1)),
);
